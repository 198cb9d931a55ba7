"""The encodings that an error suggests, for texts from the Universal Declaration of Human Rights and similar ones."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from albert_cli.text.encodings import suggest_conversion

TEXTS = {
    "German": "Die Würde des Menschen ist unantastbar. Für größere Änderungen müssen Bürger über die Straße gehen. ",
    "French": "Les représentants français ont résolu d'exposer les droits naturels. À la forêt, ça va être drôle. ",
    "Spanish": "La Nación española proclama su voluntad. ¿Qué pasó mañana? El niño comió muchísimo. ",
    "Portuguese": "A soberania não é só do povo. As ações são públicas; você está à vontade. ",
    "Italian": "È così perché la libertà è già più di ciò che può essere; l'università è là. ",
    "English": "The café’s naïve “résumé” — it’s fine. Don’t worry about the façade. ",
    "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności. Źdźbło, łąka, świnia, żółć. ",
    "Czech": "Všichni lidé rodí se svobodní a sobě rovní. Žluťoučký kůň příšerně úpěl. ",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Birbirlerine karşı kardeşlik. ",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом. ",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ",
    "Hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון. ",
    "Japanese": "すべての人間は、生まれながらにして自由であり、尊厳と権利とについて平等である。",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ",
}
ENCODINGS = {
    "German": ["iso8859-1", "cp850"],
    "English": ["cp1252"],
    "Polish": ["iso8859-2", "cp1250"],
    "Czech": ["iso8859-2", "cp1250"],
    "Turkish": ["cp1254"],
    "Russian": ["koi8-r", "cp1251", "cp866", "iso8859-5"],
    "Greek": ["iso8859-7", "cp1253"],
    "Hebrew": ["cp1255"],
    "Japanese": ["euc_jp", "shift_jis"],
    "Chinese": ["gb2312", "gb18030"],
    "Korean": ["euc_kr"],
}
CASES = [(language, encoding) for language in TEXTS for encoding in ENCODINGS.get(language, ["iso8859-1"])]


@pytest.mark.parametrize(("language", "encoding"), CASES)
def test_suggest_conversion_names_the_right_encoding(language: str, encoding: str) -> None:
    text = TEXTS[language] * 5
    data = text.encode(encoding)
    hint = suggest_conversion(data)
    names = re.findall(r"(?:may be in |fit |, )([A-Z][A-Z0-9-]+)", hint)
    assert text in [data.decode(name, "replace") for name in names]
    assert len(names) <= 5
    command = hint.rpartition(": ")[2].split()
    if shutil.which("iconv"):
        assert all(subprocess.run([*command[:2], name, *command[3:]], input=b"a").returncode == 0 for name in names)


@pytest.mark.parametrize(
    ("language", "encoding", "name"),
    [("Chinese", "gb18030", "GB18030"), ("Japanese", "shift_jis", "CP932"), ("Korean", "euc_kr", "CP949")],
)
def test_suggest_conversion_cuts_no_character(language: str, encoding: str, name: str) -> None:
    data = (f"{TEXTS[language]}\n" * 2000).encode(encoding)
    hints = [suggest_conversion(b"a" * offset + data) for offset in range(4)]
    assert all(f"iconv -f {name} " in hint for hint in hints)


def test_suggest_conversion_shows_a_word_that_differs() -> None:
    hint = suggest_conversion((TEXTS["Italian"] * 3).encode("iso8859-1"))
    assert "WINDOWS-1252 (università)" in hint
    assert "WINDOWS-1250 (universitŕ)" in hint


def test_suggest_conversion_names_no_encoding_for_damaged_utf8() -> None:
    damaged = "Möbel über die Straße. ".encode() * 100 + b"\xff\xfe\xff " * 20
    assert suggest_conversion(damaged).startswith("convert it, for example")
    assert suggest_conversion(b"caf\xe9").startswith("convert it, for example")


def test_suggest_conversion_says_that_nul_bytes_are_no_text() -> None:
    image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 20
    assert "not a text file" in suggest_conversion(image)
    assert "1252" not in suggest_conversion(image)
