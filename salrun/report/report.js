"use strict";
(() => {
  const el = (tag, properties, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };

  // --- tables: sort by a column, filter by a choice -----------------------------------------------------------------

  const value = (cell) => {
    const text = (cell.dataset.v ?? cell.textContent).trim();
    const number = Number(text.replaceAll(",", ""));
    return text === "" || text === "nan" || text === "n/a" ? null : Number.isNaN(number) ? text : number;
  };

  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true }));

  const sortTable = (heading) => {
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const sign = heading.ariaSort === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) if (other.ariaSort) other.ariaSort = "none";
    heading.ariaSort = sign > 0 ? "ascending" : "descending";
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };

  for (const button of document.querySelectorAll("table.sortable thead button")) {
    button.addEventListener("click", () => sortTable(button.closest("th")));
  }

  for (const form of document.querySelectorAll("form.filters")) {
    const table = document.getElementById(form.dataset.table);
    const rows = [...table.tBodies[0].rows].map((row) => [row, row.dataset.at.split(" ")]);
    const choices = [...form.querySelectorAll("select")];
    const filter = () => {
      const wanted = choices.filter((choice) => choice.value !== "");
      let shown = 0;
      for (const [row, at] of rows) {
        row.hidden = !wanted.every((choice) => at[choice.dataset.column] === choice.value);
        shown += !row.hidden;
      }
      // A column whose value is chosen above says nothing new.
      for (const choice of choices) table.classList.toggle(`fixed-${choice.dataset.column}`, choice.value !== "");
      form.querySelector("[role=status]").textContent = `${shown} of ${rows.length} rows`;
    };
    // Begin with one metric, over all groups where the table has such a row: what one would quote.
    for (const choice of choices) {
      const whole = choice.querySelector("[data-whole]");
      if ("first" in choice.dataset) choice.selectedIndex = 1;
      if (whole) choice.value = whole.value;
    }
    form.addEventListener("change", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  // --- colours ------------------------------------------------------------------------------------------------------

  const ramp = (...stops) => {
    const table = new Uint8ClampedArray(256 * 3);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(place), stops.length - 2);
      for (let c = 0; c < 3; c++) {
        const [a, b] = [stops[low], stops[low + 1]].map((stop) => parseInt(stop.slice(2 * c, 2 * c + 2), 16));
        table[3 * i + c] = a + (b - a) * (place - low);
      }
    }
    return table;
  };
  const RAMPS = {
    signed: ramp("0b3c7d", "2f79b5", "8bbbdc", "f5f5f5", "eda587", "cc4c3f", "7f0d22"),
    unsigned: ramp("0a0822", "3c1066", "82206c", "c53f53", "f0752e", "fbb61f", "fcfba6"),
  };
  const OUTLINES = ["#35d07f", "#ffb000", "#e5a3ff", "#4cc9f0", "#ff7f9f", "#d9ed55"];
  const NAN = -128;

  // --- gallery ------------------------------------------------------------------------------------------------------

  const MAPS_PER_CARD = 24; // when maps stand alone
  const FEW = 3; // cards that are there before one asks for more; report.css knows it too
  const score = (x) => (x === 0 || (Math.abs(x) >= 0.001 && Math.abs(x) < 1000) ? x.toFixed(3) : x.toPrecision(3));

  class Gallery {
    constructor(root) {
      this.root = root;
      this.form = root.querySelector("form.controls");
      this.list = root.querySelector("ol.cards");
      this.dialog = root.querySelector("dialog");
      this.more = root.querySelector("[data-more]");
      this.meta = JSON.parse(root.querySelector("script[type='application/json']").textContent);
      this.unpacked = new Map();
      this.cards = new Map(); // li -> {tiles: [[image, method]], filled, visible}
      this.shared = this.meta.methods.map((method) => method.scale.reduce((a, b) => Math.max(a, b), 0));
      this.scratch = el("canvas", { width: this.meta.width, height: this.meta.height });
      this.watcher = new IntersectionObserver((entries) => this.scrolled(entries), { rootMargin: "500px" });
    }

    async start() {
      this.legend();
      this.more.addEventListener("click", () => this.whole());
      this.form.addEventListener("change", (event) => {
        this.whole();
        this.changed(event.target.name);
      });
      this.form.elements.contrast.addEventListener("input", () => this.changed("contrast")); // while it slides
      this.form.addEventListener("submit", (event) => event.preventDefault());
      for (const button of this.form.querySelectorAll("[data-check]")) {
        button.addEventListener("click", () => {
          for (const box of this.form.querySelectorAll("[name=method]")) box.checked = button.dataset.check === "all";
          this.changed("method");
        });
      }
      this.list.addEventListener("keydown", (event) => this.key(event));
      this.list.addEventListener("click", (event) => {
        const tile = event.target.closest("button.tile");
        if (tile) {
          this.whole();
          this.enlarge(tile);
        }
      });
      this.dialog.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.step(event.key === "ArrowLeft" ? -1 : 1);
      });
      for (const button of this.dialog.querySelectorAll("[data-step]")) {
        button.addEventListener("click", () => this.step(Number(button.dataset.step)));
      }
      this.dialog.addEventListener("close", () => this.current?.focus());
      addEventListener("beforeprint", () => this.redraw((card) => card.filled));
      [this.values, this.flags] = await Promise.all([
        this.unpack("values").then((bytes) => new Float32Array(bytes.buffer)), this.unpack("flags")]);
      this.changed("metric");
    }

    /** The bytes of a blob, unpacked once. */
    unpack(name) {
      if (!this.unpacked.has(name)) this.unpacked.set(name, this.inflate(name));
      return this.unpacked.get(name);
    }

    async inflate(name) {
      const text = atob(this.root.querySelector(`[data-blob="${name}"]`).textContent);
      const packed = new Uint8Array(text.length);
      for (let i = 0; i < packed.length; i++) packed[i] = text.charCodeAt(i);
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
      const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
      if (this.meta.delta[name]) {
        const { width, image_id: images } = this.meta;
        const channels = name === "images" ? 3 : 1;
        const row = { values: 4 * images.length, flags: images.length }[name] ?? width * channels;
        for (let start = 0; start < bytes.length; start += row) {
          for (let i = start + channels; i < start + row; i++) bytes[i] += bytes[i - channels];
        }
      }
      return bytes;
    }

    /** All cards, not the first few: what comes below the gallery then is far away. */
    whole() {
      this.list.classList.remove("few");
      this.more.hidden = true;
    }

    get state() {
      const data = new FormData(this.form);
      return { ...Object.fromEntries(data), method: data.getAll("method").map(Number) };
    }

    changed(name) {
      const { mode, method } = this.state;
      this.root.dataset.mode = mode;
      if (["colours", "scale", "contrast", "outlines", "mode"].includes(name)) {
        this.redraw((card) => card.visible);
        return;
      }
      if (name === "metric") this.nameOrders();
      this.root.querySelector("[data-methods]").textContent = `${method.length} of ${this.meta.methods.length}`;
      this.rebuild();
    }

    /** Worst and best, where the metric says which way is better. */
    nameOrders() {
      const direction = this.meta.metrics[this.state.metric]?.direction;
      const [low, high] = { higher: ["worst first (lowest)", "best first (highest)"],
        lower: ["best first (lowest)", "worst first (highest)"] }[direction] ?? ["lowest first", "highest first"];
      for (const option of this.form.querySelectorAll("[name=order] option")) {
        if (option.value) option.textContent = option.value === "up" ? low : high;
      }
    }

    at(metric, method, image) {
      const { methods, image_id: images } = this.meta;
      return (metric * (methods.length + 1) + method) * images.length + image;
    }

    /** Mean over the shown methods, or the image's own score. */
    imageScore(metric, methods, image) {
      const known = methods.map((m) => this.values[this.at(metric, m, image)]).filter(Number.isFinite);
      return known.length ? known.reduce((a, b) => a + b) / known.length
        : this.values[this.at(metric, this.meta.methods.length, image)];
    }

    correct(image) {
      const { label, prediction } = this.meta;
      return label[image] === null || prediction[image] === null ? null : label[image] === prediction[image];
    }

    rebuild() {
      const { group, correct, arrange, metric, order, method, mode, every } = this.state;
      const meta = this.meta;
      const sorted = (items, key) => {
        if (!order) return items;
        const sign = order === "up" ? 1 : -1;
        return items.map((item) => [key(item), item])
          .sort(([a], [b]) => (Number.isFinite(a) && Number.isFinite(b) ? sign * (a - b) : Number.isFinite(b) - Number.isFinite(a)))
          .map(([, item]) => item);
      };
      let images = [...meta.image_id.keys()].filter((i) => (!group || meta.group[i] === group)
        && (!correct || this.correct(i) === (correct === "yes")));
      const maps = images.length * method.length;
      this.watcher.disconnect();
      this.cards.clear();
      this.list.replaceChildren();
      if (arrange === "map") {
        const tiles = sorted(images.flatMap((i) => method.map((m) => [i, m])), ([i, m]) => this.values[this.at(metric, m, i)]);
        for (let start = 0; start < tiles.length; start += MAPS_PER_CARD) {
          const some = tiles.slice(start, start + MAPS_PER_CARD);
          this.addCard(some, el("h4", {}, `maps ${start + 1} to ${start + some.length}`));
        }
      } else {
        images = sorted(images, (i) => this.imageScore(metric, method, i));
        for (const i of images) this.addCard([[i, -1], ...method.map((m) => [i, m])], ...this.imageHeader(i, metric, method));
      }
      // An empty card is as tall as it will be, so that the scroll bar tells the truth.
      const [wide, least] = [this.list.clientWidth, mode === "both" ? 227 : 126];
      const columns = wide < 660 ? (mode === "both" ? 1 : 3) : Math.floor(wide / least);
      const rows = Math.ceil((arrange === "map" ? MAPS_PER_CARD : method.length + 1) / columns);
      const tile = wide / columns / (mode === "both" ? 2 : 1) + 50 + (every === "on" ? 18 * meta.metrics.length : 0);
      this.list.style.setProperty("--guess", `${Math.round(70 + rows * tile)}px`);
      for (const card of this.cards.keys()) this.watcher.observe(card);
      const text = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
      this.root.querySelector(".count").textContent = maps
        ? `${text(images.length, "image")}, ${text(maps, "map")}${order ? `; ${meta.metrics[metric].label}: ${this.form.elements.order.selectedOptions[0].text}` : ""}.`
        : images.length ? "No method is chosen." : "No image fits these filters.";
      this.more.hidden = !this.list.classList.contains("few") || this.cards.size <= FEW;
      this.current = null;
    }

    addCard(tiles, ...header) {
      const card = el("li", { className: "card" }, el("header", {}, ...header));
      this.cards.set(card, { tiles, filled: false, visible: false });
      this.list.append(card);
    }

    imageHeader(image, metric, methods) {
      const { image_id: ids, group, label, prediction, metrics } = this.meta;
      const parts = [el("h4", {}, ids[image]), el("span", {}, `group ${group[image]}`)];
      if (label[image] !== null) parts.push(el("span", {}, `label ${label[image]}`));
      if (prediction[image] !== null) parts.push(el("span", {}, `predicted ${prediction[image]}`));
      const correct = this.correct(image);
      if (correct !== null) parts.push(el("span", { className: correct ? "state s-correct" : "state s-wrong" }, correct ? "correct" : "wrong"));
      const own = metrics.map((m, k) => [m.label, this.values[this.at(k, this.meta.methods.length, image)]]).filter(([, x]) => Number.isFinite(x));
      for (const [name, x] of own) parts.push(el("span", {}, `${name} ${score(x)}`));
      const mean = metrics.length && methods.length ? this.imageScore(metric, methods, image) : NaN;
      if (Number.isFinite(mean) && !own.some(([name]) => name === metrics[metric].label)) {
        parts.push(el("span", {}, `mean ${metrics[metric].label} ${score(mean)}`));
      }
      return parts;
    }

    scrolled(entries) {
      for (const { target, isIntersecting } of entries) {
        const card = this.cards.get(target);
        if (!card) continue;
        card.visible = isIntersecting;
        if (isIntersecting) {
          this.fill(target);
          this.draw(target);
        } else if (card.filled) {
          for (const canvas of target.querySelectorAll("canvas")) canvas.width = canvas.height = 0; // gives the memory back
        }
      }
    }

    fill(li) {
      const card = this.cards.get(li);
      if (card.filled) return;
      card.filled = true;
      const { metric, every, arrange } = this.state;
      const metrics = every === "on" ? [...this.meta.metrics.keys()] : metric === undefined ? [] : [Number(metric)];
      li.append(el("div", { className: "tiles" }, ...card.tiles.map(([image, method]) => {
        const canvas = el("canvas", { width: 0, height: 0 });
        canvas.ariaHidden = "true";
        canvas.style.setProperty("--ratio", this.meta.width / this.meta.height);
        const id = this.meta.image_id[image];
        if (method < 0) return el("div", { className: "tile" }, canvas, el("span", { className: "name" }, "image"));
        const tile = el("button", { type: "button", className: "tile", tabIndex: -1 }, canvas,
          el("span", { className: "name" }, ...this.meta.methods[method].label.split(/(?<=_)/).flatMap((part) => [part, el("wbr", {})])),
          el("span", { className: arrange === "map" ? "of" : "hidden" }, ` ${id} `),
          ...metrics.map((k) => this.judged(k, method, image)).filter(Boolean).map(this.caption));
        Object.assign(tile.dataset, { image, method });
        return tile;
      })));
      li.classList.add("filled");
      if (!this.current?.isConnected) this.mark(this.list.querySelector("button.tile"));
    }

    /** A score in words, or null where this metric does not judge maps (or not this one). */
    judged(metric, method, image) {
      const place = this.at(metric, method, image);
      const flag = this.meta.flags[this.flags[place]];
      const x = this.values[place];
      if (!Number.isFinite(x) && flag === "ok") return null;
      return { label: this.meta.metrics[metric].label, text: Number.isFinite(x) ? score(x) : "n/a",
        flag: flag === "ok" ? "" : flag.replaceAll("_", " ") };
    }

    caption({ label, text, flag }) {
      return el("span", { className: flag && flag !== "no mask" ? "score flagged" : "score" }, `${label} `, el("b", {}, text), flag && ` ${flag}`);
    }

    redraw(which) {
      for (const [li, card] of this.cards) if (which(card)) this.draw(li);
    }

    draw(li) {
      const state = this.state;
      for (const [number, tile] of [...li.querySelector(".tiles").children].entries()) {
        const [image, method] = this.cards.get(li).tiles[number];
        const panels = method < 0 ? ["image"] : state.mode === "both" ? ["overlay", "map"] : [state.mode];
        this.paint(tile.querySelector("canvas"), image, method, panels, state);
      }
    }

    async paint(canvas, image, method, panels, state) {
      canvas.dataset.panels = panels.length;
      const [pixels, plane] = await Promise.all([this.unpack("images"), method < 0 ? null : this.unpack(`map${method}`)]);
      const size = Math.round((canvas.clientWidth / panels.length) * devicePixelRatio);
      if (!size) return;
      const tall = Math.round((size * this.meta.height) / this.meta.width);
      Object.assign(canvas, { width: size * panels.length, height: tall });
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      panels.forEach((panel, k) => {
        this.colour(panel, pixels, plane, image, method, state);
        context.drawImage(this.scratch, k * size, 0, size, tall);
        if (state.outlines !== "on") return;
        context.save();
        context.beginPath();
        context.rect(k * size, 0, size, tall);
        context.clip();
        this.outline(context, image, k * size, size / this.meta.source[1], tall / this.meta.source[0]);
        context.restore();
      });
    }

    /** Fill the scratch canvas with the picture, the map or the map over the grey picture. */
    colour(panel, pixels, plane, image, method, state) {
      const { width, height, levels, methods } = this.meta;
      const context = this.scratch.getContext("2d", { willReadFrequently: true });
      const out = context.createImageData(width, height);
      const signed = method >= 0 && (state.colours === "auto" ? methods[method].signed : state.colours === "signed");
      const table = signed ? RAMPS.signed : RAMPS.unsigned;
      const own = method < 0 ? 0 : methods[method].scale[image];
      const full = state.scale === "shared" ? this.shared[method] : own;
      const gain = full > 0 ? (Number(state.contrast) * own) / full / levels : 0;
      const first = image * width * height;
      for (let p = 0, from = 3 * first, to = 0; p < width * height; p++, from += 3, to += 4) {
        out.data[to + 3] = 255;
        const code = panel === "image" ? 0 : (plane[first + p] << 24) >> 24;
        if (panel === "image") {
          for (let c = 0; c < 3; c++) out.data[to + c] = pixels[from + c];
        } else if (code === NAN) {
          out.data.fill((p + Math.floor(p / width)) % 4 < 2 ? 128 : 190, to, to + 3);
        } else {
          const x = Math.max(-1, Math.min(1, code * gain));
          // Over the picture, opacity says how much and only the strong half of the colours is used.
          const size = panel === "map" ? Math.abs(x) : 0.5 + 0.5 * Math.abs(x);
          const at = 3 * Math.round(signed ? (1 + Math.sign(x) * size) * 127.5 : size * 255);
          const alpha = panel === "map" ? 1 : 0.95 * Math.abs(x) ** 0.6;
          const grey = 24 + 0.55 * (0.3 * pixels[from] + 0.59 * pixels[from + 1] + 0.11 * pixels[from + 2]);
          for (let c = 0; c < 3; c++) out.data[to + c] = grey + alpha * (table[at + c] - grey);
        }
      }
      context.putImageData(out, 0, 0);
    }

    outline(context, image, left, sx, sy) {
      Object.entries(this.meta.masks).forEach(([name, boxes], k) => {
        if (!boxes[image]) return;
        const [row0, col0, row1, col1] = boxes[image];
        const role = this.meta.roles[name]?.[image];
        this.strokeBox(context, k, !role || role === "primary", left + col0 * sx, row0 * sy, (col1 - col0) * sx, (row1 - row0) * sy);
      });
    }

    strokeBox(context, k, solid, x, y, width, height) {
      const thick = 1.25 * devicePixelRatio;
      for (const [colour, line, dash] of [["#000000b0", 2 * thick, []], [OUTLINES[k % OUTLINES.length], thick, solid ? [] : [3 * thick, 2 * thick]]]) {
        Object.assign(context, { strokeStyle: colour, lineWidth: line });
        context.setLineDash(dash);
        context.strokeRect(x - thick, y - thick, width + 2 * thick, height + 2 * thick); // around it, not over it
      }
    }

    legend() {
      for (const canvas of this.root.querySelectorAll("[data-ramp]")) {
        const context = canvas.getContext("2d");
        const out = context.createImageData(128, 1);
        const table = RAMPS[canvas.dataset.ramp];
        for (let i = 0; i < 128; i++) out.data.set([...table.slice(6 * i, 6 * i + 3), 255], 4 * i);
        context.putImageData(out, 0, 0);
      }
      for (const canvas of this.root.querySelectorAll("[data-mask]")) {
        this.strokeBox(canvas.getContext("2d"), Number(canvas.dataset.mask), true, 3, 3, 22, 8);
      }
    }

    // One tile is in the tab order; arrows go on from there.
    mark(tile) {
      if (this.current) this.current.tabIndex = -1;
      this.current = tile;
      if (tile) tile.tabIndex = 0;
    }

    key(event) {
      const tile = event.target.closest("button.tile");
      if (!tile || event.ctrlKey || event.metaKey || event.altKey) return;
      this.whole();
      const mode = { o: "overlay", m: "map", b: "both" }[event.key.toLowerCase()];
      if (mode) {
        this.form.querySelector(`[name=mode][value=${mode}]`).checked = true;
        this.changed("mode");
        return;
      }
      const next = { ArrowRight: () => this.neighbour(tile, 1), ArrowLeft: () => this.neighbour(tile, -1),
        ArrowDown: () => this.sameMethod(tile, 1), ArrowUp: () => this.sameMethod(tile, -1),
        Home: () => this.edge(0), End: () => this.edge(-1) }[event.key]?.();
      if (next === undefined) return;
      event.preventDefault();
      if (next) {
        this.mark(next);
        next.focus();
      }
    }

    beside(tile, step) {
      const card = step > 0 ? tile.closest("li").nextElementSibling : tile.closest("li").previousElementSibling;
      if (card) this.fill(card);
      return card;
    }

    neighbour(tile, step) {
      const tiles = [...tile.closest("li").querySelectorAll("button.tile")];
      const inside = tiles[tiles.indexOf(tile) + step];
      if (inside) return inside;
      const others = this.beside(tile, step)?.querySelectorAll("button.tile");
      return others ? others[step > 0 ? 0 : others.length - 1] : null;
    }

    sameMethod(tile, step) {
      const card = this.beside(tile, step);
      return card && (card.querySelector(`[data-method="${tile.dataset.method}"]`) ?? card.querySelector("button.tile"));
    }

    edge(place) {
      const card = [...this.cards.keys()].at(place);
      this.fill(card);
      return [...card.querySelectorAll("button.tile")].at(place);
    }

    step(by) {
      const next = this.current && this.neighbour(this.current, by);
      if (next) this.enlarge(next);
    }

    enlarge(tile) {
      this.mark(tile);
      const [image, method] = [Number(tile.dataset.image), Number(tile.dataset.method)];
      const { image_id: ids, methods, metrics } = this.meta;
      this.dialog.querySelector("h4").textContent = `${methods[method].label}, image ${ids[image]}`;
      const panels = ["image", "overlay", "map"].map((panel) => [panel, el("canvas", {})]);
      this.dialog.querySelector(".panels").replaceChildren(...panels.map(([panel, canvas]) => {
        canvas.style.setProperty("--ratio", this.meta.width / this.meta.height);
        return el("figure", {}, canvas, el("figcaption", {}, panel));
      }));
      const judged = [...metrics.keys()].map((k) => this.judged(k, method, image) ?? this.judged(k, methods.length, image));
      this.dialog.querySelector("dl").replaceChildren(...judged.filter(Boolean).map(({ label, text, flag }) =>
        el("div", {}, el("dt", {}, label), el("dd", {}, flag ? `${text} (${flag})` : text))));
      if (!this.dialog.open) this.dialog.showModal();
      for (const [panel, canvas] of panels) this.paint(canvas, image, method, [panel], this.state);
    }
  }

  // A gallery starts when it comes near the screen: opening the page costs nothing.
  const starter = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      starter.unobserve(target);
      new Gallery(target).start();
    }
  }, { rootMargin: "800px" });
  for (const root of document.querySelectorAll("[data-gallery]")) starter.observe(root);
})();
