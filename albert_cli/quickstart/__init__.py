"""`albert quickstart`: run the whole pipeline, from text to a report, on bundled data or on the user's."""

from typing import Final

RESULT_FILE: Final = "quickstart.json"
PLAN_FILE: Final = "quickstart-plan.json"
