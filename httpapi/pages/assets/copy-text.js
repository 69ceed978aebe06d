// The clipboard.

// copyText puts a text into the clipboard, and reports whether it could. Over plain HTTP browsers
// have no clipboard for pages, and copy what is selected.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea"), had = document.activeElement;
    area.value = text;
    area.className = "unseen";
    (had?.closest("dialog") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    had?.focus({preventScroll: true});
    return done;
  }
}
