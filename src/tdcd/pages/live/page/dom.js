// Elements by name. Texts are always texts: nothing here, or anywhere on this page, reads markup from data.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element. */
export const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** An SVG element. */
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

/** Set a text only if it is another one: screen readers and selections are left alone. */
export function say(node, text) {
  if (node.textContent === text) return;
  if (node.childNodes.length === 1 && node.firstChild.nodeType === Node.TEXT_NODE) node.firstChild.data = text;
  else node.textContent = text;
}

/** The same for attributes. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

/**
 * The children of a node, as many as there are items to show, and each shown by `update(child, item)`. They are kept from
 * one second to the next: elements that are thrown away fill a page's memory long before the browser collects them.
 */
export function keep(node, items, make, update) {
  while (node.children.length > items.length) node.lastElementChild.remove();
  while (node.children.length < items.length) node.append(make());
  items.forEach((item, place) => update(node.children[place], item));
}
