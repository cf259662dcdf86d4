"use strict";
// Draws a recorded Switchyard run. What is on screen is a function of one number, the time in the round:
// nothing is measured here, no event is reordered, and data time maps linearly to screen time.
(() => {
  const data = JSON.parse(document.getElementById("switchyard-data").textContent);
  const result = data.result;
  const LABELS = { gpu_only: "GPU only", hybrid: "GPU + ANE" };
  const COLOURS = { gpu: "#f5ad2f", ane: "#35cdbb", late: "#ff6464", waiting: "#dfe7ee", rail: "#3d4c5c" };
  const PLATFORMS = ["A", "B", "C"];
  const LINES = 6;
  // Presentation only, in data milliseconds.
  const APPROACH_MS = 160, TRAVEL_MS = 300, STAND_MS = 260, CLOSE_UP_MS = 60, GREEN_MS = 90;
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;

  const $ = (id) => document.getElementById(id);
  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    return made.append(...children), made;
  };
  /** How many values of an ascending array are at or below x. */
  const countTo = (ascending, x) => {
    const found = ascending.findIndex((value) => value > x);
    return found < 0 ? ascending.length : found;
  };
  const sorted = (values) => values.sort((a, b) => a - b);
  const font = (pen, size, weight = 700) => { pen.font = `${weight} ${size}px system-ui, sans-serif`; };

  // ---- one round, prepared for questions about any moment ------------------------------------------
  function prepare(round) {
    const trains = round.trains, all = trains.concat(round.background);
    const responses = (outcome) => sorted(trains.filter((t) => t.outcome === outcome).map((t) => t.response_ms));
    const perLine = Array.from({ length: LINES }, (_, i) => trains.filter((t) => t.line === i + 1));
    const devices = {};
    for (const name of ["gpu", "ane"]) {
      const used = all.filter((r) => r.device === name).sort((a, b) => a.service_start_ms - b.service_start_ms);
      const starts = used.map((r) => r.service_start_ms), arrivals = sorted(used.map((r) => r.arrival_ms));
      devices[name] = { used, starts, arrivals };
    }
    return {
      ...round, perLine, devices,
      delivered: responses("delivered"), misrouted: responses("misrouted"),
      late: sorted(trains.filter((t) => t.outcome === "late").map((t) => t.arrival_ms + round.deadline_ms)),
      arrivals: sorted(trains.map((t) => t.arrival_ms)), responses: sorted(trains.map((t) => t.response_ms)),
      longest: Math.max(0, ...trains.map((t) => t.latency_ms)),
      end: Math.max(round.duration_s * 1000, ...all.map((r) => r.response_ms)),
    };
  }

  const counted = (config) => data.rounds.filter((r) => r.config === config);
  const verified = new Map(result.rounds.map((r) => [r.index, r.ane_verified]));
  let shown = counted("gpu_only");
  if (result.comparison.available) shown = shown.concat(counted("hybrid"));
  if (!shown.length) shown = counted("hybrid").filter((r) => verified.get(r.index) === true);
  const rounds = shown.map(prepare);
  const endMs = Math.max(0, ...rounds.map((r) => r.end));

  // ---- drawing -------------------------------------------------------------------------------------
  function fit(canvas) {
    const scale = Math.min(3, window.devicePixelRatio || 1);
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const wanted = { width: Math.round(width * scale), height: Math.round(height * scale) };
    if (canvas.width !== wanted.width || canvas.height !== wanted.height) Object.assign(canvas, wanted);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  }

  /** Where everything lies for one canvas size: queue space, signals and the 18 ways across the switch. */
  function geometry(width, height) {
    const small = width < 430;
    const size = small ? { length: 11, height: 8, gap: 2 } : { length: 17, height: 11, gap: 4 };
    const left = small ? 14 : 20, signalX = width * (small ? 0.47 : 0.5), throatX = width * 0.68;
    const berthX = width * 0.8, berthEnd = width - 8, middle = height / 2;
    const lineY = (line) => 8 + ((height - 8) * (line - 0.5)) / LINES;
    const platformY = (index) => height * (0.2 + 0.3 * index);
    const ways = {};
    for (let line = 1; line <= LINES; line++) {
      PLATFORMS.forEach((platform, index) => {
        const points = [];
        const curve = (x0, y0, x1, y1) => {
          for (let i = 0; i <= 14; i++) {
            const f = i / 14, ease = f * f * (3 - 2 * f);
            points.push([x0 + (x1 - x0) * f, y0 + (y1 - y0) * ease]);
          }
        };
        curve(signalX + 8, lineY(line), throatX - 6, middle);
        curve(throatX + 6, middle, berthX, platformY(index));
        points.push([berthEnd - size.length / 2 - 2, platformY(index)]);
        const along = [0];
        points.slice(1).forEach(([x, y], i) => along.push(along[i] + Math.hypot(x - points[i][0], y - points[i][1])));
        ways[line + platform] = { points, along };
      });
    }
    return { small, size, left, signalX, throatX, berthX, berthEnd, lineY, platformY, ways };
  }

  function place(way, fraction) {
    const { points, along } = way;
    const target = along[along.length - 1] * fraction;
    const i = Math.max(1, along.findIndex((length) => length >= target));
    const part = (target - along[i - 1]) / (along[i] - along[i - 1] || 1);
    const [x0, y0] = points[i - 1], [x1, y1] = points[i];
    return [x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, Math.atan2(y1 - y0, x1 - x0)];
  }

  /** A train with its nose to the right. Square nose: GPU. Pointed nose: Neural Engine. */
  function drawTrain(pen, x, y, angle, look, size) {
    const { length, height } = size, half = height / 2, nose = Math.min(6, length * 0.4);
    pen.save(); pen.translate(x, y); pen.rotate(angle);
    pen.fillStyle = look.body;
    pen.fillRect(-length / 2, -half, length - nose + 0.5, height);
    pen.beginPath();
    if (look.device === "ane") {
      pen.moveTo(length / 2 - nose, -half); pen.lineTo(length / 2, 0); pen.lineTo(length / 2 - nose, half);
    } else pen.rect(length / 2 - nose, -half, nose, height);
    pen.fillStyle = look.nose; pen.fill();
    if (look.mark) {
      pen.rotate(-angle);
      pen.fillStyle = "#14080a";
      font(pen, height, 800);
      Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
      pen.fillText(look.mark, -nose / 2, 0.5);
    }
    pen.restore();
  }

  function lookOf(train, now, deadline) {
    const gone = now >= train.response_ms;
    const late = train.outcome === "late" && now > train.arrival_ms + deadline;
    const device = gone ? train.device : null;
    const body = late ? COLOURS.late : gone ? COLOURS[train.device] : COLOURS.waiting;
    const mark = late ? "!" : gone && train.outcome === "misrouted" ? "×" : "";
    return { device, body, nose: gone ? COLOURS[train.device] : body, mark };
  }

  function drawTracks(pen, g) {
    Object.assign(pen, { lineWidth: 2, strokeStyle: COLOURS.rail });
    pen.beginPath();
    for (const way of Object.values(g.ways)) {
      way.points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    }
    for (let y, line = 1; line <= LINES; line++) {
      y = g.lineY(line); pen.moveTo(g.left, y); pen.lineTo(g.signalX + 8, y);
    }
    pen.stroke();
    font(pen, g.small ? 10 : 12, 600);
    Object.assign(pen, { fillStyle: "#a3b1bf", textBaseline: "middle", textAlign: "left" });
    for (let line = 1; line <= LINES; line++) pen.fillText(String(line), 2, g.lineY(line));
    PLATFORMS.forEach((platform, index) => {
      const y = g.platformY(index);
      pen.fillStyle = "#223040";
      pen.fillRect(g.berthX, y + g.size.height / 2 + 4, g.berthEnd - g.berthX, 5);
      pen.fillStyle = "#a3b1bf";
      pen.fillText(g.small ? platform : `Platform ${platform}`, g.berthX + 2, y + g.size.height / 2 + 18);
    });
  }

  function drawSignal(pen, g, line, state) {
    const x = g.signalX, y = g.lineY(line) - (g.small ? 10 : 13), radius = g.small ? 3.5 : 4.5;
    if (state.device) {
      Object.assign(pen, { lineWidth: 2.5, strokeStyle: COLOURS[state.device] });
      pen.setLineDash(state.device === "ane" ? [3, 2] : []);
      pen.beginPath(); pen.arc(x, y, radius + 3, 0, 7); pen.stroke(); pen.setLineDash([]);
    }
    pen.fillStyle = state.green ? "#58d68d" : "#c0392b";
    pen.beginPath();
    // Stop is a square, go is a disc: the colour is not the only sign.
    if (state.green) pen.arc(x, y, radius, 0, 7); else pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    pen.fill();
  }

  function drawLine(pen, g, round, line, now) {
    const trains = round.perLine[line - 1], step = g.size.length + g.size.gap;
    const front = g.signalX - 6 - g.size.length / 2;
    const room = Math.max(1, Math.floor((front - g.left - 14) / step));
    let ahead = 0, standing = 0, signal = { at: -Infinity, device: null, green: false };
    for (const train of trains) {
      if (train.arrival_ms - APPROACH_MS > now) break;
      const since = now - train.response_ms;
      if (since >= 0) {
        // It has left; those behind close up during the next moments.
        if (!reduced && since < CLOSE_UP_MS) ahead += 1 - since / CLOSE_UP_MS;
        const ring = since < GREEN_MS * 3 ? train.device : null;
        if (train.response_ms > signal.at) signal = { at: train.response_ms, device: ring, green: since < GREEN_MS };
        continue;
      }
      const arrived = now >= train.arrival_ms;
      if (!arrived && reduced) continue;
      if (arrived) standing++;
      if (ahead < room) {
        let x = front - ahead * step;
        if (!arrived) x -= ((train.arrival_ms - now) / APPROACH_MS) * Math.max(0, x - g.left);
        pen.globalAlpha = arrived ? 1 : 0.45;
        drawTrain(pen, x, g.lineY(line), 0, lookOf(train, now, round.deadline_ms), g.size);
        pen.globalAlpha = 1;
      }
      ahead++;
    }
    if (standing > room) {
      font(pen, g.small ? 9 : 11);
      Object.assign(pen, { fillStyle: COLOURS.late, textAlign: "left" });
      pen.fillText(`+${standing - room}`, g.left, g.lineY(line) - (g.small ? 9 : 12));
    }
    drawSignal(pen, g, line, signal);
  }

  function drawRunning(pen, g, round, now) {
    for (const train of round.trains) {
      const since = now - train.response_ms;
      if (since < 0 || since > TRAVEL_MS + STAND_MS || !g.ways[train.line + train.answer]) continue;
      const fraction = reduced ? 1 : Math.min(1, since / TRAVEL_MS);
      const [x, y, angle] = place(g.ways[train.line + train.answer], fraction);
      pen.globalAlpha = since > TRAVEL_MS ? 1 - (since - TRAVEL_MS) / STAND_MS : 1;
      drawTrain(pen, x, y, angle, lookOf(train, now, round.deadline_ms), g.size);
      if (train.outcome === "misrouted" && fraction === 1) {
        font(pen, 11);
        Object.assign(pen, { fillStyle: COLOURS.late, textAlign: "right" });
        pen.fillText(`× ${train.platforms[train.answer]}`, g.berthEnd, y - g.size.height - 3);
      }
      pen.globalAlpha = 1;
    }
  }

  function drawYard(view, now) {
    const { pen, width, height } = fit(view.yard);
    if (!view.geometry || view.geometry.width !== width || view.geometry.height !== height) {
      view.geometry = { ...geometry(width, height), width, height };
    }
    drawTracks(pen, view.geometry);
    for (let line = 1; line <= LINES; line++) drawLine(pen, view.geometry, view.round, line, now);
    drawRunning(pen, view.geometry, view.round, now);
  }

  /** Every train's latency by arrival. Dots are on time, red strokes late; what lies ahead is dim. */
  function drawStrip(view, now) {
    const { pen, width, height } = fit(view.strip), { round } = view;
    const top = Math.max(round.longest, round.deadline_ms * 1.5);
    const x = (ms) => (ms / (endMs || 1)) * width;
    const y = (ms) => height - 3 - (Math.sqrt(ms) / Math.sqrt(top)) * (height - 16);
    for (const train of round.trains) {
      pen.globalAlpha = train.response_ms <= now ? 1 : 0.25;
      pen.fillStyle = train.outcome === "late" ? COLOURS.late : COLOURS[train.device];
      const px = x(train.arrival_ms), py = y(train.latency_ms);
      if (train.outcome === "late") pen.fillRect(px - 0.75, py - 3, 1.5, 6);
      else { pen.beginPath(); pen.arc(px, py, 1.6, 0, 7); pen.fill(); }
    }
    pen.globalAlpha = 1;
    Object.assign(pen, { strokeStyle: "#8da0b3", lineWidth: 1 });
    pen.setLineDash([4, 4]);
    pen.beginPath(); pen.moveTo(0, y(round.deadline_ms)); pen.lineTo(width, y(round.deadline_ms)); pen.stroke();
    pen.setLineDash([]);
    font(pen, 11, 400);
    Object.assign(pen, { fillStyle: "#a3b1bf", textBaseline: "top", textAlign: "left" });
    pen.fillText(`decision latency by arrival, up to ${round.longest.toFixed(0)} ms; dashes: ${round.deadline_ms} ms`, 0, 0);
    pen.fillStyle = "#ffffff";
    pen.fillRect(x(now) - 0.75, 12, 1.5, height - 12);
  }

  // ---- panels --------------------------------------------------------------------------------------
  function panel(round) {
    const counts = {};
    const list = element("ul", { className: "counts" });
    const tiles = { delivered: "delivered", late: "late !", misrouted: "misrouted ×", waiting: "waiting" };
    for (const [name, label] of Object.entries(tiles)) {
      counts[name] = element("b", { textContent: "0" });
      Object.assign(counts[name].dataset, { count: name, config: round.config });
      list.append(element("li", { className: name }, counts[name], element("span", { textContent: label })));
    }
    const devices = {};
    const rows = element("dl", { className: "devices" }), trains = round.trains.length;
    for (const name of round.devices.ane.used.length ? ["gpu", "ane"] : ["gpu"]) {
      devices[name] = element("dd");
      rows.append(element("div", { className: name }, element("dt", { textContent: name.toUpperCase() }), devices[name]));
    }
    const yard = element("canvas", { className: "yard" }), strip = element("canvas", { className: "strip" });
    yard.setAttribute("role", "img");
    yard.setAttribute("aria-label", `${LABELS[round.config]}: six lines, three platforms, trains waiting at the signals`);
    strip.setAttribute("aria-hidden", "true");
    strip.addEventListener("click", (event) => seek((event.offsetX / strip.clientWidth) * endMs));
    const note = element("small", { textContent: `${trains} trains, deadline ${round.deadline_ms} ms` });
    const heading = element("h2", { textContent: LABELS[round.config] }, note);
    $("panels").append(element("section", { className: "panel" }, heading, list, yard, strip, rows));
    return { round, counts, devices, yard, strip, geometry: null };
  }

  function say(view, now) {
    const { round } = view;
    for (const name of ["delivered", "late", "misrouted"]) view.counts[name].textContent = countTo(round[name], now);
    view.counts.waiting.textContent = countTo(round.arrivals, now) - countTo(round.responses, now);
    for (const [name, cell] of Object.entries(view.devices)) {
      const device = round.devices[name], started = countTo(device.starts, now);
      const current = device.used[started - 1];
      const busy = current && current.service_end_ms > now ? current.class || `train ${current.id}` : "idle";
      cell.textContent = `${busy}, ${countTo(device.arrivals, now) - started} waiting`;
    }
  }

  // ---- playback ------------------------------------------------------------------------------------
  let now = 0, playing = false, last = null, lastDrawn = -Infinity;
  const speed = $("speed"), scrub = $("scrub"), play = $("play"), views = rounds.map(panel);
  scrub.max = Math.ceil(endMs);
  $("panels").classList.toggle("two", views.length > 1);

  function draw() {
    for (const view of views) { drawYard(view, now); drawStrip(view, now); say(view, now); }
    scrub.value = now;
    $("clock").textContent = `${(now / 1000).toFixed(3)} s`;
    scrub.setAttribute("aria-valuetext", $("clock").textContent);
  }
  function setPlaying(on) {
    if (on && now >= endMs) now = 0;
    playing = on && endMs > 0;
    last = null;
    play.textContent = playing ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(playing));
    if (playing) requestAnimationFrame(frame);
  }
  function seek(ms) {
    now = Math.min(endMs, Math.max(0, ms));
    draw();
  }
  function frame(stamp) {
    if (!playing) return;
    if (last !== null) now = Math.min(endMs, now + (stamp - last) * Number(speed.value));
    last = stamp;
    // With reduced motion the picture changes twice a second, without movement in between.
    if (!reduced || stamp - lastDrawn > 500 || now >= endMs) { lastDrawn = stamp; draw(); }
    if (now >= endMs) setPlaying(false); else requestAnimationFrame(frame);
  }
  play.addEventListener("click", () => setPlaying(!playing));
  $("restart").addEventListener("click", () => seek(0));
  scrub.addEventListener("input", () => seek(Number(scrub.value)));
  window.addEventListener("resize", draw);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inControl = ["BUTTON", "SELECT"].includes(event.target.tagName);
    const step = event.shiftKey ? 50 : 1000;
    const turn = (by) => { speed.selectedIndex = Math.min(speed.options.length - 1, Math.max(0, speed.selectedIndex + by)); };
    const keys = {
      " ": () => setPlaying(!playing), ArrowLeft: () => seek(now - step), ArrowRight: () => seek(now + step),
      ArrowUp: () => turn(1), ArrowDown: () => turn(-1), Home: () => seek(0), End: () => seek(endMs),
    };
    // A focused button or list keeps its own keys.
    if (!keys[event.key] || (inControl && (event.key === " " || event.target.tagName === "SELECT"))) return;
    event.preventDefault();
    keys[event.key]();
  });

  // ---- words and numbers ---------------------------------------------------------------------------
  const number = (value, digits, unit = "") => (value === undefined || value === null ? "–" : value.toFixed(digits) + unit);
  function resultCard() {
    const configs = views.length > 1 ? ["gpu_only", "hybrid"] : rounds.map((r) => r.config);
    const table = $("result");
    table.append(element("thead", {}, element("tr", {}, element("th"),
      ...configs.map((config) => element("th", { textContent: LABELS[config], scope: "col" })))));
    const body = element("tbody");
    const row = (label, value, note, key) => {
      const cells = configs.map((config) => {
        const { game, summary } = result.configs[config];
        const cell = element("td", {}, String(value(summary, game)));
        if (key) Object.assign(cell.dataset, { result: key, config });
        if (note) cell.append(element("small", { textContent: note(summary, game, config) }));
        return cell;
      });
      const head = element("th", { textContent: label, scope: "row" });
      body.append(element("tr", { className: key === "late" ? "lead" : "" }, head, ...cells));
    };
    const interval = (config) => {
      const found = result.statistics && result.statistics.configs[config].late_rate.interval;
      return found ? `, 95 % interval ${(found[0] * 100).toFixed(1)}–${(found[1] * 100).toFixed(1)} % for this timetable` : "";
    };
    row("Late trains", (s, g) => g.late, (s, g, c) => `${number(100 * s.late.rate, 1)} % of ${g.trains}${interval(c)}`, "late");
    const percentile = (label, key, p, id) => row(`${label} ${p.toUpperCase()}`, (s) => number(s[key][`${p}_ms`], 1, " ms"), null, id);
    for (const p of ["p50", "p95", "p99"]) percentile("Decision latency", "decision_latency", p, p);
    for (const p of ["p50", "p99"]) percentile("Queue wait", "queue_wait", p);
    row("Delivered", (s, g) => g.delivered, null, "delivered");
    row("Misrouted", (s, g) => g.misrouted, null, "misrouted");
    row("Answered as the oracle", (s, g) => number(100 * g.route_accuracy, 2, " %"));
    for (const ms of result.workload.thresholds_ms) row(`Over ${ms} ms`, (s) => number(100 * s.miss_rate_at_ms[ms], 1, " %"));
    row("Decisions per second", (s) => number(s.secondary.decisions_per_s, 1));
    row("Completed requests per second", (s) => number(s.secondary.completed_req_s, 1));
    row("Trains by device", (s) => Object.entries(s.secondary.devices).map(([d, n]) => `${n} ${d.toUpperCase()}`).join(", "));
    table.append(body);
    const { decision_disagreements: differing, same_schedule_sha256: same } = result.comparison;
    if (views.length > 1) {
      $("agreement").textContent = `Trains answered differently in the two rounds: ${differing}. ` +
        (same ? "Both rounds ran the same timetable." : "The rounds did not run the same timetable.");
    }
  }

  function aneNotice() {
    const ane = result.ane, box = $("ane"), lines = [];
    if (ane.reason_text) lines.push(element("p", { textContent: `${ane.reason_text}.`, id: "ane-reason" }));
    if (ane.detail) lines.push(element("p", { textContent: ane.detail, className: "quiet" }));
    const demoted = result.rounds.filter((r) => r.ane_verified === false);
    if (demoted.length) lines.push(element("p", { textContent: "The GPU + ANE round is in the data but is not counted.", id: "not-counted" }));
    for (const failed of result.failed_rounds || []) {
      lines.push(element("p", { textContent: `${LABELS[failed.config]} did not finish: ${failed.error}` }));
    }
    if (ane.setup_command) lines.push(element("p", { textContent: "Set it up with:" }, element("code", { textContent: ane.setup_command })));
    if (!rounds.length) lines.push(element("p", { textContent: "There is no round to show." }));
    if (!lines.length) return;
    box.append(element("h2", { textContent: views.length > 1 ? "Neural Engine" : "Why there is no comparison" }), ...lines);
    box.hidden = false;
  }

  function about() {
    const w = result.workload, m = result.machine.platform;
    const facts = {
      Machine: [m.soc, m.macos && `macOS ${m.macos}`].filter(Boolean).join(", ") + (result.synthetic ? " (virtual, synthetic)" : ""),
      Model: `${result.model.name} at ${result.model.revision.slice(0, 12)}`,
      Workload: `${w.id}, seed ${w.seed}, ${w.duration_s} s, ${w.offered.requests} requests, ${w.offered.trains} trains`,
      "Standard run": result.standard ? "yes" : "no",
      "Round order": result.design.sequence.map((c) => LABELS[c]).join(", then "),
      "Schedule": w.schedule_sha256,
      Made: `${result.created_utc} by laya-apple ${result.laya_apple}`,
    };
    for (const [name, value] of Object.entries(facts)) {
      $("about").append(element("dt", { textContent: name }), element("dd", { textContent: value }));
    }
  }

  function legend() {
    const size = { length: 20, height: 12, gap: 0 };
    const looks = [
      ["waiting at the red signal", null, "waiting", "waiting", ""],
      ["answered by the GPU (square nose)", "gpu", "gpu", "gpu", ""],
      ["answered by the Neural Engine (pointed nose)", "ane", "ane", "ane", ""],
      ["late, nose: the device that answered", "gpu", "late", "gpu", "!"],
      ["misrouted, on time", "ane", "ane", "ane", "×"],
    ];
    for (const [label, device, body, nose, mark] of looks) {
      const look = { device, body: COLOURS[body], nose: COLOURS[nose], mark };
      const canvas = element("canvas");
      canvas.setAttribute("aria-hidden", "true");
      $("legend").append(element("li", {}, canvas, label));
      const { pen, width, height } = fit(canvas);
      drawTrain(pen, width / 2, height / 2, 0, look, size);
    }
  }

  $("banner").hidden = !result.synthetic;
  $("subtitle").textContent = `${result.workload.id} · ${result.model.name} · ${result.machine.platform.soc}`;
  legend();
  if (rounds.length) resultCard();
  aneNotice(); about(); draw(); setPlaying(!reduced);
})();
