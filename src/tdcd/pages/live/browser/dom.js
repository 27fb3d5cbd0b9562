// Elements from data. Texts are always texts: nothing here, or anywhere on this page, reads markup.

const SVG = "http://www.w3.org/2000/svg";

function setAttributes(node, attributes) {
  for (const name of node.getAttributeNames()) {
    // The line at the pointer is the page's own.
    if (!(name in attributes) && name !== "d") node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") node.style.cssText = value;
    // Without a look at what is there: asked for, a long text stays in memory until garbage is collected.
    else if (name === "d" || node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
}

/**
 * Make the children of a node what `tree` says: texts, and elements as [name, attributes, children]. Elements that are
 * there are kept from one second to the next: thrown away, they fill a page's memory long before the browser collects
 * them, and selections and screen readers lose their place.
 */
export function show(node, tree) {
  while (node.childNodes.length > tree.length) node.lastChild.remove();
  tree.forEach((item, place) => {
    const there = node.childNodes[place];
    if (typeof item === "string") {
      if (there?.nodeType !== Node.TEXT_NODE) put(node, there, document.createTextNode(item));
      else if (there.data !== item) there.data = item;
      return;
    }
    const [name, attributes, children] = item;
    const isKept = there?.nodeType === Node.ELEMENT_NODE && there.localName === name;
    const element = isKept ? there : newElement(node, name);
    setAttributes(element, attributes);
    show(element, children);
    if (!isKept) put(node, there, element);
  });
}

function newElement(parent, name) {
  return name === "svg" || parent.namespaceURI === SVG ? document.createElementNS(SVG, name) : document.createElement(name);
}

function put(node, there, child) {
  if (there) there.replaceWith(child);
  else node.append(child);
}
