"""Decode and check images in requests, before a session records anything."""

from __future__ import annotations

from agentrl_core.agents.history_digest import Json
from agentrl_core.env.image import images_in
from agentrl_core.env.message_images import with_images
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

MOST_IMAGES = 256
"""Most images of one request, including those of its history."""

IMAGE_BYTES = 16 << 20
"""Most bytes of one image."""


def decoded_images(request: Json, refusal: str | None) -> Json:
    """Return a request to `/v1/chat/completions` with its image parts decoded to `env.Image`.

    Args:
        request: the request that a dialect returned.
        refusal: why images are refused here, and what to do; None: they are accepted.

    Raises:
        InvalidInputError: images are refused, too many, too large, not base64 `data:` URLs, or not pictures.
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
        raise InvalidInputError(f"messages: the chat has images, {refusal}")
    if len(images) > MOST_IMAGES:
        raise InvalidInputError(f"messages: there are {len(images)} images; send at most {MOST_IMAGES}")
    largest = max(len(image.content) for image in images)
    if largest > IMAGE_BYTES:
        place = next(place for place, image in enumerate(images) if len(image.content) == largest)
        raise InvalidInputError(f"messages: image {place} has {largest} bytes; send at most {IMAGE_BYTES}")
    return request | {"messages": messages}
