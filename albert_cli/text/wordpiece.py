"""Build BERT's tokenizer from a `vocab.txt`, which has one piece per line, and from the tokens added to it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.special_tokens import REQUIRED_ROLES, find_special_names
from albert_cli.text.vocabulary import CONFIG_FILE

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.normalizers import BertNormalizer

DEFAULT_OPTIONS: Final = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_ADDED_TOKENS_FILE: Final = "added_tokens.json"
# The classes of transformers, without the suffix "Fast", that are BERT's tokenizer.
_BERT_CLASSES: Final = (
    *("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"),
    *("SqueezeBertTokenizer", "LayoutLMTokenizer", "LxmertTokenizer", "RetriBertTokenizer", "DPRReaderTokenizer"),
    *("DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer"),
)
# The classes that read a `vocab.txt` as BERT does. Other classes find words in another way, such as with MeCab in
# Japanese, or read another format of this name.
_CLASSES: Final = (
    *(*_BERT_CLASSES, "AlbertTokenizer", "SplinterTokenizer", "FunnelTokenizer"),
    *("PreTrainedTokenizer", "PythonBackend", "TokenizersBackend"),
)


class _AddedTokenOptions(TypedDict):
    """An added token, and the options with which a text is searched for it."""

    content: str
    lstrip: NotRequired[bool]
    normalized: NotRequired[bool]
    rstrip: NotRequired[bool]
    single_word: NotRequired[bool]
    special: NotRequired[bool]


@dataclass(frozen=True)
class _SavedTokens:
    """The key of a `tokenizer_config.json` that lists the added tokens by id."""

    added_tokens_decoder: dict[str, _AddedTokenOptions] | None = None


def build_wordpiece(path: Path, config: dict[str, Any]) -> Tokenizer:
    """Build BERT's tokenizer from its `vocab.txt`.

    config: the content of `tokenizer_config.json`. Raises `CheckpointError` if a special token is missing, if an added
    token has an id that does not follow the vocabulary's, or if the `vocab.txt` belongs to a tokenizer of another kind.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    _require_wordpiece(path, config)
    lines = store.read_bytes(path).decode("utf-8", "replace").rstrip("\r\n").split("\n")
    ids = {line.rstrip("\r"): index for index, line in enumerate(lines)}
    added_tokens = read_added_tokens(path.parent)
    all_ids = ids | {token.content: index for index, token in added_tokens.items()}
    names_by_role = find_special_names(all_ids, config)
    for role in ("unk", *REQUIRED_ROLES):
        if role not in names_by_role:
            raise CheckpointError(f"{path}: not a WordPiece vocabulary, it has no {role} token")
    cls = names_by_role["cls"]
    sep = names_by_role["sep"]
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=names_by_role["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = _build_normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    for index, token in sorted(added_tokens.items(), key=itemgetter(0)):
        name = token.content
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(name) != index:
            message = f"{path}: has {len(ids)} tokens, so the added token {name!r} cannot have the id {index}"
            raise CheckpointError(message, "use the files of one tokenizer")
    tokenizer.post_processor = processors.BertProcessing((sep, all_ids[sep]), (cls, all_ids[cls]))
    tokenizer.add_special_tokens(list(names_by_role.values()))
    return tokenizer


def use_configured_normalizer(tokenizer: Tokenizer, directory: Path, config: dict[str, Any]) -> None:
    """Replace the normalizer of a `tokenizer.json`, in place, if transformers builds BERT's tokenizer from its pieces.

    config: the content of `tokenizer_config.json`, which then has the options of the normalizer.
    """
    from tokenizers import normalizers

    if config.get("auto_map") or not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        return
    name = _class_name(directory, config)
    model_config = directory / "config.json"
    is_bert = name in _BERT_CLASSES
    if name is None and store.exists_or_is_listed(model_config):
        is_bert = store.read_json(model_config).get("model_type") == "bert"
    if is_bert:
        tokenizer.normalizer = _build_normalizer(config)


def _build_normalizer(config: dict[str, Any]) -> BertNormalizer:
    """Return BERT's normalizer with the options in the content of a `tokenizer_config.json`."""
    from tokenizers.normalizers import BertNormalizer

    # Some programs write null for an option that they leave at its default.
    configured = {key: config[key] for key in DEFAULT_OPTIONS if config.get(key) is not None}
    options: dict[str, Any] = {**DEFAULT_OPTIONS, **configured}
    return BertNormalizer(
        lowercase=options["do_lower_case"],
        strip_accents=options["strip_accents"],
        handle_chinese_chars=options["tokenize_chinese_chars"],
    )


def _class_name(directory: Path, config: dict[str, Any]) -> str | None:
    """Return the class of a tokenizer without the suffix "Fast", from `tokenizer_config.json` or `config.json`."""
    name = config.get("tokenizer_class")
    model_config = directory / "config.json"
    if name is None and store.exists_or_is_listed(model_config):
        name = store.read_json(model_config).get("tokenizer_class")
    return None if name is None else str(name).removesuffix("Fast")


def _require_wordpiece(path: Path, config: dict[str, Any]) -> None:
    """Raise `CheckpointError` if the `vocab.txt` belongs to a tokenizer that splits texts differently from BERT's.

    config: the content of `tokenizer_config.json`.
    """
    name = _class_name(path.parent, config)
    reasons: list[str] = []
    if name is not None and name not in _CLASSES:
        reasons.append(name)
    reasons += [key for key in ("word_tokenizer_type", "auto_map") if config.get(key)]
    if reasons:
        raise CheckpointError(
            f"{path}: its tokenizer ({reasons[0]}) splits texts differently from BERT's",
            "save a tokenizer.json with a fast tokenizer of transformers, or use another model",
        )


def read_added_tokens(directory: Path) -> dict[int, AddedToken]:
    """Return the added tokens by id; some of them may be in the `vocab.txt`, too.

    Older versions of transformers list them only in `added_tokens.json`, without options.
    """
    from tokenizers import AddedToken

    path = directory / _ADDED_TOKENS_FILE
    ids = store.read_record(path, dict[str, int]) if store.exists_or_is_listed(path) else {}
    added_tokens = {index: AddedToken(name) for name, index in ids.items()}
    path = directory / CONFIG_FILE
    saved = store.read_record(path, _SavedTokens) if store.exists_or_is_listed(path) else _SavedTokens()
    for index, options in (saved.added_tokens_decoder or {}).items():
        if not index.isdecimal():
            raise CheckpointError(f"{path}: added_tokens_decoder.{index}: not an id")
        added_tokens[int(index)] = AddedToken(**options)
    return added_tokens
