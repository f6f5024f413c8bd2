"""Images in requests: decoded and checked before a session takes anything."""

from __future__ import annotations

from agentrl_core.agents.history_digest import Json
from agentrl_core.env.image import images_in
from agentrl_core.env.image_parts import with_images
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

MOST_IMAGES = 256
"""How many images one request may have, those of its history included."""

IMAGE_BYTES = 16 << 20
"""Most bytes of one image."""


def decoded_images(request: Json, refusal: str | None) -> Json:
    """Return a request to `/v1/chat/completions` whose image parts are `env.Image`.

    Args:
        request: as a dialect gives it.
        refusal: why images are refused here, and what to do; None: they are taken.

    Raises:
        InvalidInputError: images are refused, too many or too large, not base64 `data:` URLs, or no pictures.
    """
    if "messages" not in request:
        return request
    try:
        messages = with_images(request["messages"])
    except UnsupportedError as error:
        raise InvalidInputError(str(error)) from None
    images = images_in(messages)
    if not images:
        return request
    if refusal is not None:
        raise InvalidInputError(f"messages: there are {len(images)} images, {refusal}")
    if len(images) > MOST_IMAGES:
        raise InvalidInputError(f"messages: there are {len(images)} images; send at most {MOST_IMAGES}")
    largest = max(len(image.content) for image in images)
    if largest > IMAGE_BYTES:
        raise InvalidInputError(f"messages: an image has {largest} bytes; send at most {IMAGE_BYTES}")
    return request | {"messages": messages}
