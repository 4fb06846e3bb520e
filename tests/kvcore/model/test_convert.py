from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from swarmkv.kvcore.model import ModelCorrupt
from swarmkv.kvcore.model.convert import convert_gguf


@pytest.fixture
def converted(tiny, tmp_path: Path) -> Path:
    convert_gguf(tiny.gguf, tmp_path)
    return tmp_path


def test_the_weights_are_those_before_llama_cpp(tiny, converted: Path) -> None:
    from safetensors.torch import load_file

    found = load_file(converted / "model.safetensors")
    assert found.keys() == tiny.weights.keys()
    for name, weight in tiny.weights.items():
        assert str(found[name].dtype) == "torch.bfloat16"
        np.testing.assert_array_equal(found[name].float().numpy(), weight, err_msg=name)


def test_the_configuration_is_the_files(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["head_dim"], config["num_key_value_heads"]) == (32, 8, 2)
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert config["tie_word_embeddings"] is True
    generation = json.loads((converted / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_another_architecture_is_refused(gguf_writer, tmp_path: Path) -> None:
    gguf_writer(tmp_path / "x.gguf", "llama", pre="default")
    with pytest.raises(ModelCorrupt, match=r"tokenizer.ggml.pre is 'default', not 'smollm'"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)
    gguf_writer(tmp_path / "y.gguf", "mamba")
    with pytest.raises(ModelCorrupt, match=r"general.architecture is 'mamba', not 'llama'"):
        convert_gguf(tmp_path / "y.gguf", tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all, but some longer text instead"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelCorrupt):
        convert_gguf(file, tmp_path)
