import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from agentsvc.config.file import render_default
from agentsvc.config.layers import known_keys
from agentsvc.config.sandboxes import SpecConfig
from agentsvc.config.schema import Config, load, with_sections
from agentsvc.plugin.files import sections

FILE = Path(__file__).parents[2] / "config.toml"
DEFAULTS = {name: msgspec.to_builtins(kind()) for name, kind in sections().items()}
NO_HOME = {"HOME": "/nonexistent"}


def test_the_shipped_config_file_is_the_generated_one() -> None:
    assert FILE.read_text() == render_default(sections())


def test_the_shipped_config_file_changes_nothing() -> None:
    assert load(FILE, NO_HOME, {}, sections=sections()).config == Config(extensions=DEFAULTS)


def test_the_shipped_config_file_has_every_key() -> None:
    tables = tomllib.loads(FILE.read_text())
    keys = [f"{section}.{key}" for section, table in tables.items() for key in table]
    assert keys == known_keys(with_sections(sections()))


def test_every_key_has_one_line_that_explains_it() -> None:
    lines = FILE.read_text().splitlines()
    for index, line in enumerate(lines):
        if re.match(r"#?[a-z_]+ = ", line):
            assert lines[index - 1].startswith("# "), line
            assert not lines[index - 1].endswith("."), line
            if index > 1:
                assert not lines[index - 2].startswith("# ") or "[" not in lines[index - 1], line


def test_the_examples_in_the_shipped_config_file_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(re.sub(r"^#(?! )", "", FILE.read_text(), flags=re.MULTILINE))
    config = load(file, NO_HOME, {}, sections=sections()).config
    assert config.backends == {"example": {"type": "process"}}
    example: dict[str, Any] = msgspec.to_builtins(config.specs["example"])
    assert list(example) == list(SpecConfig.__struct_fields__)
    assert config.specs["example"].ports[0].number == 8000


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    below: int = 1
    """What is written below
    a key"""
    within: Annotated[int, msgspec.Meta(description="What its type says")] = 2


class Untold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: int = 1


def test_a_key_is_explained_below_it_or_by_its_type_and_has_to_be() -> None:
    text = render_default({"told": Told})
    assert "[told]\n# What is written below a key\nbelow = 1\n" in text
    assert "# What its type says\nwithin = 2\n" in text
    with pytest.raises(TypeError, match="no description for the key key"):
        render_default({"untold": Untold})
