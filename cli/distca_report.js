// The timelines of a page of `distca report`: drawn on a canvas, moved by mouse, fingers, keys and buttons.
"use strict";
(() => {
  const KINDS = ["attention", "linear", "copy", "issue", "wait", "message"];
  const AXIS = 22, PRINT_WIDTH = 680, LEAST_VIEW = 20, MOST_ROWS = 4;

  // A list of five integers an event: its begin less that of the one before, its length, the index of its name, and its
  // layer and nano-batch plus 1.
  function eventsOf(numbers) {
    const events = [];
    let begin = 0;
    for (let i = 0; i < numbers.length; i += 5) {
      begin += numbers[i];
      events.push({begin, end: begin + numbers[i + 1], name: numbers[i + 2], layer: numbers[i + 3] - 1,
        nanoBatch: numbers[i + 4] - 1});
    }
    return events;
  }

  // The messages in as many rows as overlap, each in the first that is free. The last row takes all others, for rows of
  // less than a few pixels could not be seen.
  function inRows(events) {
    const ends = [];
    for (const event of events) {
      let row = ends.findIndex((end) => end <= event.begin);
      if (row < 0) row = ends.length < MOST_ROWS ? ends.push(0) - 1 : MOST_ROWS - 1;
      ends[row] = Math.max(ends[row], event.end);
      event.row = row;
    }
    return Math.max(1, ends.length);
  }

  class Timeline {
    constructor(canvas) {
      this.canvas = canvas;
      this.data = JSON.parse(document.getElementById(`${canvas.dataset.figure}-data`).textContent);
      this.said = document.getElementById(`${canvas.dataset.figure}-said`);
      this.ranks = this.data.ranks.map((rank) => {
        const messages = eventsOf(rank.messages);
        return {name: rank.name, compute: eventsOf(rank.compute), messages, rows: inRows(messages)};
      });
      this.from = 0;
      this.to = this.data.length;
      this.pointers = new Map();
      this.listen();
      this.draw();
    }

    layout() {
      const many = this.ranks.length > 12;
      this.lane = many ? 14 : 24;
      this.head = many ? 13 : 18;
      this.message = many ? 6 : 12;
      return AXIS + this.ranks.length * (this.head + this.lane + this.message + 6);
    }

    // Whole pictures of at most 10^5 events are drawn within a frame.
    draw(width = this.canvas.clientWidth || PRINT_WIDTH, ratio = window.devicePixelRatio || 1) {
      const height = this.layout(), style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.width = width;
      const to = this.canvas.getContext("2d");
      to.scale(ratio, ratio);
      this.colours = KINDS.map(colour);
      this.text = colour("text");
      this.drawAxis(to, height, colour("faint"), colour("rule"));
      let top = AXIS;
      for (const rank of this.ranks) {
        to.fillStyle = this.text;
        to.font = `${this.head > 14 ? 12 : 10}px system-ui, "DejaVu Sans", sans-serif`;
        to.fillText(rank.name, 2, top + this.head - 4);
        top += this.head;
        this.drawEvents(to, rank.compute, top, this.lane);
        top += this.lane;
        const height = this.message / rank.rows;
        const gap = height > 3 ? 1 : 0;
        for (const event of rank.messages) this.box(to, event, top + 2 + event.row * height, height - gap);
        top += this.message + 6;
      }
    }

    x(time) { return (time - this.from) / (this.to - this.from) * this.width; }
    ms(time) { return time * this.data.unit_ns * 1e-6; }
    shown(ms) { return `${Number(ms.toPrecision(4))} ms`; }

    drawAxis(to, height, faint, rule) {
      const length = this.ms(this.to - this.from), most = Math.max(2, this.width / 90);
      let step = 10 ** Math.floor(Math.log10(length / most));
      for (const factor of [1, 2, 5, 10]) {
        if (length / (step * factor) <= most) { step *= factor; break; }
      }
      const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      to.font = '11px system-ui, "DejaVu Sans", sans-serif';
      for (let i = Math.ceil(this.ms(this.from) / step); i * step <= this.ms(this.to) * (1 + 1e-12); ++i) {
        const x = this.x(i * step * 1e6 / this.data.unit_ns), text = `${(i * step).toFixed(digits)} ms`;
        to.fillStyle = rule;
        to.fillRect(x, AXIS - 4, 1, height);
        to.fillStyle = faint;
        to.fillText(text, Math.min(Math.max(0, x - to.measureText(text).width / 2),
          this.width - to.measureText(text).width), 12);
      }
    }

    box(to, event, top, height) {
      const left = Math.max(0, this.x(event.begin)), right = Math.min(this.width, this.x(event.end));
      if (right < 0 || left > this.width) return 0;
      to.fillStyle = this.colours[this.data.names[event.name][1]];
      to.fillRect(left, top, Math.max(right - left, .6), height);
      return right - left;
    }

    drawEvents(to, events, top, height) {
      to.font = '11px system-ui, "DejaVu Sans", sans-serif';
      for (const event of events) {
        const width = this.box(to, event, top, height);
        if (width < 50 || height < 16) continue;
        const [name, kind] = this.data.names[event.name], text = name.replace(/^(for|back)ward /, "");
        if (to.measureText(text).width > width - 8) continue;
        to.fillStyle = kind === 0 || kind === 4 ? "#ffffff" : "#000000";
        to.fillText(text, Math.max(0, this.x(event.begin)) + 4, top + height / 2 + 4);
      }
    }

    at(x, y) {
      const time = this.from + x / this.width * (this.to - this.from);
      const each = this.head + this.lane + this.message + 6, index = Math.floor((y - AXIS) / each);
      const rank = this.ranks[index];
      if (!rank) return null;
      const inside = y - AXIS - index * each - this.head - this.lane;
      const slack = (this.to - this.from) / this.width * 2;
      const row = Math.floor((inside - 2) / (this.message / rank.rows));
      const found = (inside < 0 ? rank.compute : rank.messages.filter((event) => event.row === row)).filter(
        (event) => event.begin - slack <= time && time <= event.end + slack);
      const nearest = (event) => Math.max(event.begin - time, time - event.end);
      return {rank, event: found.sort((a, b) => nearest(a) - nearest(b))[0]};
    }

    say(x, y) {
      const found = this.at(x, y);
      if (!found || !found.event) return;
      const {rank, event} = found;
      const where = (event.layer >= 0 ? `, layer ${event.layer}` : "")
        + (event.nanoBatch >= 0 ? `, nano-batch ${event.nanoBatch}` : "");
      this.said.textContent = `${rank.name}: ${this.data.names[event.name][0]}${where}, from `
        + `${this.shown(this.ms(event.begin))} for ${this.shown(this.ms(event.end - event.begin))}`;
    }

    show(from, to) {
      const length = Math.min(Math.max(to - from, LEAST_VIEW), this.data.length);
      this.from = Math.min(Math.max(0, from), this.data.length - length);
      this.to = this.from + length;
      this.draw();
    }

    zoom(factor, share) {
      const length = (this.to - this.from) / factor, kept = this.from + share * (this.to - this.from);
      this.show(kept - share * length, kept + (1 - share) * length);
    }

    move(share) {
      const length = this.to - this.from;
      this.show(this.from + share * length, this.to + share * length);
    }

    act(word) {
      if (word === "in") this.zoom(2, .5);
      if (word === "out") this.zoom(.5, .5);
      if (word === "left") this.move(-.5);
      if (word === "right") this.move(.5);
      if (word === "whole") this.show(0, this.data.length);
    }

    listen() {
      const canvas = this.canvas;
      const keys = {"+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "whole"};
      for (const button of document.querySelectorAll(`[data-for="${canvas.dataset.figure}"]`)) {
        button.addEventListener("click", () => this.act(button.dataset.act));
      }
      canvas.addEventListener("keydown", (event) => {
        if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        this.act(keys[event.key]);
      });
      // The page must scroll over a canvas that nobody has chosen.
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && document.activeElement !== canvas) return;
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.width);
        else this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? .01 : .002)), event.offsetX / this.width);
      }, {passive: false});
      canvas.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, event.offsetX);
        canvas.setPointerCapture(event.pointerId);
        this.say(event.offsetX, event.offsetY);
      });
      canvas.addEventListener("pointermove", (event) => this.drag(event));
      for (const end of ["pointerup", "pointercancel"]) {
        canvas.addEventListener(end, (event) => this.pointers.delete(event.pointerId));
      }
      new ResizeObserver(() => {
        if (!document.documentElement.dataset.print && canvas.clientWidth !== this.width) this.draw();
      }).observe(canvas);
    }

    // One pointer moves, two zoom around their middle.
    drag(event) {
      const before = this.pointers.get(event.pointerId);
      if (before === undefined) return this.say(event.offsetX, event.offsetY);
      const places = () => [...this.pointers.values()].slice(0, 2);
      const old = places();
      this.pointers.set(event.pointerId, event.offsetX);
      if (old.length < 2) return this.move((before - event.offsetX) / this.width);
      const now = places(), span = (pair) => Math.max(10, Math.abs(pair[0] - pair[1]));
      return this.zoom(span(now) / span(old), (now[0] + now[1]) / 2 / this.width);
    }
  }

  const timelines = [...document.querySelectorAll("canvas[data-figure]")].map((canvas) => new Timeline(canvas));
  const redraw = () => timelines.forEach((timeline) => timeline.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // Paper shows whole steps in light colours, and all numbers.
  let opened = [];
  const print = (begins) => {
    if (begins === Boolean(document.documentElement.dataset.print)) return;
    if (begins) {
      document.documentElement.dataset.print = "yes";
      opened = [...document.querySelectorAll("details:not([open])")];
    } else {
      delete document.documentElement.dataset.print;
    }
    for (const details of opened) details.open = begins;
    for (const timeline of timelines) {
      if (begins) {
        timeline.kept = [timeline.from, timeline.to];
        [timeline.from, timeline.to] = [0, timeline.data.length];
        timeline.draw(PRINT_WIDTH, 2);
      } else {
        timeline.show(...timeline.kept);
      }
    }
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
})();
