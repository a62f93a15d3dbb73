"""salrun/config/read_once.py: YAML files are parsed once while they stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.core_plugins import file_config_source
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import OmegaConf

from salrun.config import compose
from salrun.config.compose import compose_config
from salrun.config.read_once import FileConfigSource

WORDS = ["dataset=textbox", "reasoning=simple_nr", "model=smerf_simple", "metrics=[pafl]"]


def test_a_second_composition_parses_no_file_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    once = compose_config([*WORDS, "methods=[rise]"])
    read = []
    plain = file_config_source.FileConfigSource.load_config
    monkeypatch.setattr(
        file_config_source.FileConfigSource, "load_config", lambda s, path: read.append(path) or plain(s, path)
    )
    assert compose_config([*WORDS, "methods=[rise]", "seed=3"])["seed"] == 3
    assert compose_config([*WORDS, "methods=[rise]"]) == once, "what was merged into the copies stays out"
    assert read == []


def test_a_changed_file_is_parsed_again_and_copies_are_given(tmp_path: Path) -> None:
    source, file = FileConfigSource("mine", str(tmp_path)), tmp_path / "a.yaml"
    with pytest.raises(ConfigLoadError):
        source.load_config("a")
    file.write_text("# @package _global_\nx: {y: 1}\n")
    first = source.load_config("a")
    OmegaConf.update(first.config, "x.y", 5)
    again = FileConfigSource("other", str(tmp_path)).load_config("a")
    assert (again.config, again.header, again.provider) == ({"x": {"y": 1}}, {"package": "_global_"}, "other")
    file.write_text("x: {y: 22}\n")
    changed = source.load_config("a")
    assert (changed.config, changed.header) == ({"x": {"y": 22}}, {"package": None})


def test_an_override_is_read_once() -> None:
    assert compose._parsed("seed=3") is compose._parsed("seed=3")
