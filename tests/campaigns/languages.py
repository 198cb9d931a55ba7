"""Run the whole pipeline on texts of sixteen languages and print a table.

python -m tests.campaigns.languages OUT [LANGUAGE ...]

For each language the command builds vocabulary and data, masks tokens, pretrains 20 steps, fills a mask and fine-tunes
on a table. All files are in OUT.

Columns: "cut words" counts the masked spans that begin or end within a word, "other ids" the sentences whose ids differ
in `transformers`, and "not restored" the sentences that decoding does not restore.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from albert_cli.console import format_table
from tests.helpers.language_check import check_language, train_and_use
from tests.helpers.languages import LANGUAGE_CODES, sentences


def main() -> None:
    """Check the languages and print the table.

    Fail if tokens are unknown, words are cut, ids differ from those of `transformers`, or texts are not restored.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=f"{', '.join(LANGUAGE_CODES)}; default: all")
    arguments = parser.parse_args()
    rows = []
    wrong = []
    for language in arguments.languages or LANGUAGE_CODES:
        folder = arguments.out / language
        folder.mkdir(parents=True)
        report = check_language(language, folder)
        filled, score = train_and_use(folder, sentences(language))
        if report.unknown_tokens or report.cut_words or report.different_ids or report.not_restored:
            wrong.append(language)
        cut_words = "–" if report.cut_words is None else f"{report.cut_words} of {report.spans}"
        rows.append(
            [
                language,
                f"{report.tokens_per_word:.2f}",
                report.unknown_tokens,
                cut_words,
                f"{report.sentences_found} of {report.sentences_expected}",
                report.different_ids,
                report.not_restored,
                filled,
                f"{score:.2f}",
            ]
        )
    headers = ("language", "tokens per word", "unknown", "cut words", "sentences", "other ids", "not restored")
    print(format_table([*headers, "filled", "table"], rows))
    print("Languages without spaces: tokens per character.")
    assert not wrong, f"unknown tokens, cut words, other ids or texts that are not restored: {', '.join(wrong)}"


if __name__ == "__main__":
    main()
