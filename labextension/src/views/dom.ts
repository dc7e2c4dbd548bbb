/** An element with a class of this extension; strings become text nodes, never markup. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  name: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = `jp-torchdist-${name}`;
  node.append(...children);
  return node;
}

export function button(name: string, label: string, onClick: () => void): HTMLButtonElement {
  const node = element('button', name, label);
  node.type = 'button';
  node.addEventListener('click', onClick);
  return node;
}

/** Shows a text, or nothing where it is empty. An unchanged text is left alone, so that no screen reader repeats it. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
  node.hidden = text === '';
}
