"""The Hugging Face hub: whether it has a model, asked once and with a limit before a download begins."""

from __future__ import annotations

from .errors import ModelUnavailable, ModelUnknown

ANSWER_TIMEOUT_S = 15


def require_on_hub(model: str, embedded: tuple[str, ...]) -> None:
    """Return if the hub is reachable and serves this model to this user.

    transformers' own loading retries for most of a minute where there is no network, and names no way out.

    Raises: ModelUnknown, ModelUnavailable.
    """
    from huggingface_hub import HfApi, errors

    client_error: type[Exception] = vars(errors)[
        "HTTPError"
    ]  # of httpx or httpx2, by the hub library's version
    try:
        HfApi().model_info(model, timeout=ANSWER_TIMEOUT_S)
    except errors.GatedRepoError as error:
        advice = "accept its licence on huggingface.co and set HF_TOKEN"
        raise ModelUnavailable(model, "its owner must grant access", advice) from error
    except errors.RepositoryNotFoundError as error:
        reason = "the Hugging Face hub has none (a private one needs HF_TOKEN)"
        raise ModelUnknown(model, reason, embedded) from error
    except (client_error, OSError) as error:
        raise ModelUnavailable(
            model,
            f"the Hugging Face hub does not answer: {str(error).partition(chr(10))[0]}",
            "download it where there is a network (`hf download`), or give a local folder",
        ) from error
