// Wide tables scroll in a box that the theme puts around them; the keyboard must reach it.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
});
