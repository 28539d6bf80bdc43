"use strict";
(() => {
  const NARROW = 560; // pixels: a plot below this width is drawn for a phone
  const PRINTED = 700; // pixels: the width of A4 within its margins
  const FLATTER = 0.85; // factor of the height in print: two plots and their captions fit a page
  // plotly's default buttons include one that uploads the data.
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const config = { displaylogo: false, responsive: true, modeBarButtons: buttons };

  // Returns the layout of a figure at a width. On a phone, each entry of the legend takes a row, and touch scrolls the page.
  const fitted = (figure, width) => {
    const layout = JSON.parse(JSON.stringify(figure.layout));
    if (width >= NARROW) return layout;
    const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (named > 1) layout.height += 12 * named;
    layout.font = { size: 12 };
    layout.legend = { font: { size: 11 } };
    layout.margin = { l: 48, r: 12 };
    layout.dragmode = false;
    return layout;
  };

  const draw = async () => {
    const figures = JSON.parse(document.getElementById("figures").textContent);
    const places = [...document.querySelectorAll("[data-plot]")];
    for (const place of places) {
      const figure = figures[place.dataset.plot];
      const narrow = place.clientWidth < NARROW;
      place.style.minHeight = "";
      place.classList.add("unsnapped");
      await Plotly.newPlot(place, figure.data, fitted(figure, place.clientWidth), { ...config, displayModeBar: narrow ? false : "hover" });
    }
    for (const place of places) { // pictures for print, as wide as the paper
      const figure = figures[place.dataset.plot];
      const rows = figure.layout.yaxis.type === "category"; // a plot with rows keeps its height
      const size = { width: PRINTED, height: figure.layout.height * (rows ? 1 : FLATTER) };
      const picture = document.createElement("img");
      picture.className = "plot-print";
      picture.alt = place.getAttribute("aria-label");
      picture.src = await Plotly.toImage({ data: figure.data, layout: figure.layout }, { format: "svg", ...size });
      place.after(picture);
      place.classList.remove("unsnapped");
    }
    document.documentElement.dataset.drawn = "yes";
  };

  const copies = (button) => {
    const code = button.closest(".snippet").querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch { // some browsers deny the clipboard to pages opened from disk
        window.getSelection().selectAllChildren(code);
        document.execCommand("copy");
        window.getSelection().removeAllRanges();
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  };

  document.querySelectorAll(".copy").forEach(copies);
  if (window.Plotly) draw();
  else document.documentElement.dataset.drawn = "yes";
})();
