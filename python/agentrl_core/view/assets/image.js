// Images that nodes show: small ones in the text and in the tree, the whole one on a click, and a note in place of what
// is not in the page or what the browser cannot show. Nothing is loaded from elsewhere.

import { h, number, s } from "./dom.js";

// What runs no script. The page is made with these types alone; they are looked at once more.
const TYPES = new Set(["png", "jpeg", "webp", "gif"]);

export function imagesOf(run, node) {
  return (node.images ?? "").split(" ").filter(Boolean).map((digest) => ({ digest, ...(run.about.images[digest] ?? { why: "it is not in this page" }) }));
}

function urlOf(image) {
  const kept = TYPES.has(image.type) ? document.getElementById(`image-${image.digest}`) : null;
  return kept === null ? null : `data:image/${image.type};base64,${kept.textContent}`;
}

function caption(image) {
  const size = image.width ? `${image.type.toUpperCase()} ${image.width} × ${image.height}` : null;
  const bytes = image.bytes === undefined ? null : `${number(image.bytes)} bytes`;
  return [size, bytes, `sha256 ${image.digest.slice(0, 16)}…`].filter(Boolean).join(" · ");
}

function note(image, why) {
  return h("figure", { class: "image left-out", title: image.digest }, h("figcaption", {}, `image not shown: ${why}`), h("small", {}, caption(image)));
}

function opened(image, url) {
  const dialog = h("dialog", { class: "full", onclick: () => dialog.close(), onclose: () => dialog.remove() }, h("img", { src: url, alt: caption(image) }), h("p", {}, caption(image)));
  document.body.append(dialog);
  dialog.showModal();
}

function thumbnail(image) {
  const url = urlOf(image);
  if (url === null) return note(image, image.why ?? "it is not in this page");
  const figure = h("figure", { class: "image" });
  const open = h("button", { title: `${caption(image)}: press for the full size`, onclick: () => opened(image, url) },
    h("img", { src: url, alt: caption(image), onerror: () => figure.replaceWith(note(image, "the browser cannot read its bytes")) }));
  figure.append(open);
  return figure;
}

// The images of a part of a text; a count of those that are not in the page.
export function gallery(run, node) {
  const images = imagesOf(run, node);
  if (images.length === 0) return null;
  const left = images.filter((image) => urlOf(image) === null).length;
  return h("div", { class: "images" }, images.map(thumbnail), left > 1 && h("small", { class: "count" }, `${number(left)} of ${number(images.length)} images are not in this page`));
}

// The first image of a node, for a place in a drawing.
export function icon(run, node, place) {
  const [image] = imagesOf(run, node);
  const url = image === undefined ? null : urlOf(image);
  if (url === null) return null;
  const drawn = s("image", { class: "shown", href: url, preserveAspectRatio: "xMinYMid meet", ...place, onerror: () => drawn.remove() });
  return drawn;
}
