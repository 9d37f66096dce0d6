"use strict";
// The page of a leaderboard. Everything that is shown comes from assets/data.js; names are written as text, never as HTML.
(() => {
  const { boards, methods } = openbench.found;
  const $ = (id) => document.getElementById(id);
  const PER_PAGE = 50, MOST_RANKED = 20;
  const NEEDS = ["training data", "outliers", "gradients", "text"];
  const TEXTS = [
    ["training", "Training"], ["augment", "Augmentation"], ["outliers", "Outliers"], ["backbone", "Backbone"],
    ["settings", "Hyper-parameters"], ["tuned", "Tuned on"], ["published", "Published for"], ["source", "Source"],
  ];
  const BEHIND = ["published", "source"];
  const COSTS = [["ms", "ms / image"], ["mib", "Peak memory (MiB)"]];
  // Shown at first, of these the texts in which rows differ, and always what published figures were measured with.
  const FIRST = ["training", "augment", "outliers", "backbone", "published", "near.auroc", "far.auroc", "near.fpr95", "far.fpr95", "id.accuracy", "ms", "near.auroc.published", "near.auroc.apart", "far.auroc.published", "far.auroc.apart"];
  const firstColumns = () => (board.first ?? FIRST).filter((key) => {
    const index = board.metrics.findIndex((metric) => metric.id === key);
    if (index >= 0) return board.rows.some((row) => row.values[index] !== null);
    const values = new Set(board.rows.map((row) => row[key]));
    return !TEXTS.some(([one]) => one === key) || values.size > 1 || (key === "published" && values.size && !values.has(""));
  });
  // Okabe and Ito, with a marker of its own each: no two families differ by colour alone.
  const FAMILIES = {
    "logits": ["#0072B2", "circle"], "features": ["#D55E00", "square"], "features and classifier": ["#009E73", "diamond"],
    "layers": ["#CC79A7", "triangle-up"], "gradients or images": ["#E69F00", "cross"], "text": ["#56B4E9", "x"],
    "": ["#888888", "star"],
  };
  const state = { board: "", q: "", training: "", backbone: "", reads: "", since: "", without: [], ranked: false, complete: false, cols: null, sort: "", select: [], open: "" };
  let board = boards[0], table = null, selected = new Set(), drawing = 0, seen = false, drawn = "";

  // --- the address -----------------------------------------------------------------------------------------------
  const fromAddress = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const key of ["board", "q", "training", "backbone", "reads", "since", "sort", "open"]) state[key] = given.get(key) ?? "";
    state.without = (given.get("without") ?? "").split(",").filter((need) => NEEDS.includes(need));
    for (const key of ["ranked", "complete"]) state[key] = given.get(key) === "1";
    state.cols = given.has("cols") ? given.get("cols").split("|").filter(Boolean) : null;
    state.select = (given.get("select") ?? "").split(",").filter(Boolean);
  };
  const toAddress = () => {
    const kept = new URLSearchParams();
    for (const key of ["board", "q", "training", "backbone", "reads", "since", "sort", "open"]) if (state[key]) kept.set(key, state[key]);
    if (state.without.length) kept.set("without", state.without.join(","));
    for (const key of ["ranked", "complete"]) if (state[key]) kept.set(key, "1");
    if (state.cols.join("|") !== firstColumns().join("|")) kept.set("cols", state.cols.join("|"));
    if (selected.size) kept.set("select", [...selected].join(","));
    history.replaceState(history.state, "", `#${kept}`);
    drawn = place();
  };
  // The view without the row that is open.
  const place = () => { const given = new URLSearchParams(location.hash.slice(1)); given.delete("open"); return given.toString(); };
  // What comes now is a step that the browser's Back undoes.
  const step = (mark) => history.pushState(mark, "", location.href);

  // --- cells -----------------------------------------------------------------------------------------------------
  const element = (name, text, attributes = {}) => {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = String(text);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const number = (value) => (Array.isArray(value) ? value[0] : typeof value === "number" ? value : null);
  const percent = (value) => (100 * value).toFixed(2);
  const signed = (value) => (value === null ? "" : `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(2)}`);
  const shown = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "string") return value;
    if (!Array.isArray(value)) return percent(value);
    if (value.length === 2) return `${percent(value[0])} <small>±${percent(value[1])}</small>`;
    return `${percent(value[0])} <small>[${percent(value[1])}, ${percent(value[2])}]</small>`;
  };
  const range = (ranks, type) => type === "display" ? (ranks ? (ranks[0] === ranks[1] ? ranks[0] : `${ranks[0]}–${ranks[1]}`) : "") : ranks ? ranks[0] + ranks[1] / 1e6 : Infinity;
  // `a b c d f` as `a–d f`: groups are lettered in order.
  const short = (letters) => {
    const value = (text) => [...text].reduce((sum, letter) => 26 * sum + letter.charCodeAt(0) - 96, 0), runs = [];
    for (const letter of letters.split(" ").filter(Boolean)) {
      const last = runs.at(-1);
      if (last && value(letter) === value(last.at(-1)) + 1) last.push(letter); else runs.push([letter]);
    }
    return runs.map((run) => run.length > 2 ? `${run[0]}–${run.at(-1)}` : run.join(" ")).join(" ");
  };
  const idOf = (row) => row.id ?? row.runs[0] ?? "";
  const bestOf = (rows, index, better) => {
    const found = rows.map((row) => number(row.values[index])).filter((value) => value !== null);
    return better === 0 || new Set(found).size < 2 ? null : (better > 0 ? Math.max : Math.min)(...found);
  };
  // What has no number comes last in the order of the first click.
  const order = (value, better) => (value === null ? (better > 0 ? -Infinity : Infinity) : value);

  const heading = (title, explanation) => `<span title="${escaped(explanation)}">${escaped(title)}</span>`;

  const columns = () => {
    const ranked = board.rows.filter((row) => row.rank !== null);
    const written = (metric, row, value) => metric.id.endsWith(".apart") ? signed(number(value))
      : metric.id.endsWith(".published") && value !== null && !row.comparable ? `<span class="quiet" title="${escaped(row.published)}">(${shown(value)})</span>` : shown(value);
    const found = [
      { title: '<span class="unseen">Select</span>', name: "select", orderable: false, searchable: false, className: "text", data: (row, type) => type === "display" ? `<input type="checkbox" aria-label="Select ${escaped(row.method)}" ${selected.has(idOf(row)) ? "checked" : ""}>` : "" },
      { title: heading("Rank", "By near AUROC unless the title of the board says otherwise; = marks rows that print the same number"), name: "rank", searchable: false, visible: !board.kind, data: (row, type) => type === "display" ? (row.rank === null ? "" : `${row.rank}${row.tied ? "=" : ""}`) : row.rank ?? 1e9 },
      { title: "Method", name: "method", className: "text name", data: (row, type) => type === "display" ? `<button type="button" class="open">${escaped(row.method)}</button>` : row.method },
      { title: heading("Rank interval", "The ranks that the row may have on other test images of the same networks, 95 % for all rows together"), name: "ranks", searchable: false, visible: board.compared > 1, data: (row, type) => range(row.ranks_here, type) },
      { title: heading("Rank interval incl. retraining", "The ranks that the row may have on other test images and with networks trained again, 95 % for all rows together"), name: "retrained", searchable: false, visible: board.compared > 1 && board.rows.some((row) => row.networks > 1), data: (row, type) => range(row.ranks, type) },
      { title: heading("Tied group", "Rows with a common letter do not differ significantly on other test images; rows without one do"), name: "groups", searchable: false, className: "text", visible: board.compared > 1, data: (row, type) => type === "display" ? escaped(short(row.groups)) : row.groups || "~" },
    ];
    const text = ([key, title]) => ({ title, name: key, className: "text", visible: state.cols.includes(key), data: (row, type) => type === "display" ? escaped(row[key]) : row[key] });
    found.push(...TEXTS.filter(([key]) => !BEHIND.includes(key)).map(text));
    board.metrics.forEach((metric, index) => {
      const best = bestOf(ranked, index, metric.better);
      found.push({
        title: escaped(metric.title) + (metric.better > 0 ? "\u00a0↑" : metric.better < 0 ? "\u00a0↓" : ""), name: metric.id, searchable: false,
        visible: state.cols.includes(metric.id), orderSequence: metric.better > 0 ? ["desc", "asc"] : ["asc", "desc"],
        data: (row, type) => type === "display" ? written(metric, row, row.values[index]) : order(number(row.values[index]), metric.better),
        createdCell: (cell, _, row) => { if (row.rank !== null && best !== null && number(row.values[index]) === best) cell.classList.add("best"); },
      });
    });
    found.push(...TEXTS.filter(([key]) => BEHIND.includes(key)).map(text)); // behind the figures, which narrow windows show first
    for (const [key, title] of COSTS) found.push({ title, name: key, searchable: false, visible: state.cols.includes(key), data: (row, type) => type === "display" ? (row[key] ?? "") : row[key] ?? Infinity });
    if (board.rows.some((row) => row.group)) found.push({ title: "", name: "group", visible: false, searchable: false, data: (row) => row.group });
    return found;
  };

  // --- filters ---------------------------------------------------------------------------------------------------
  const passes = (row) => {
    const facts = methods[row.method] ?? { reads: "", needs: [], year: "" };
    return (!state.training || row.training === state.training) && (!state.backbone || row.backbone === state.backbone)
      && (!state.reads || facts.reads === state.reads) && (!state.since || facts.year >= state.since)
      && !(state.ranked && row.rank === null) && !(state.complete && !row.complete)
      && !state.without.some((need) => facts.needs.includes(need) || (need === "outliers" && row.outliers !== "none"));
  };
  const fill = (id, values, all, chosen) => {
    const select = $(id);
    select.replaceChildren(...(all === null ? [] : [element("option", all, { value: "" })]), ...values.map(([value, text]) => element("option", text, { value })));
    select.value = chosen;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  };
  const distinct = (values) => [...new Set(values)].filter(Boolean).sort().map((value) => [value, value]);
  const fillFilters = () => {
    fill("training", distinct(board.rows.map((row) => row.training)), "all", state.training);
    fill("backbone", distinct(board.rows.map((row) => row.backbone)), "all", state.backbone);
    const facts = board.rows.map((row) => methods[row.method]);
    fill("reads", distinct(facts.map((fact) => fact.reads)), "anything", state.reads);
    fill("since", distinct(facts.map((fact) => fact.year)), "any year", state.since);
    for (const key of ["training", "backbone", "reads", "since"]) state[key] = $(key).value;
    const named = [...TEXTS.filter(([key]) => key !== "source" || board.kind), ...board.metrics.map((metric) => [metric.id, metric.title]), ...COSTS];
    $("column_list").replaceChildren(...named.map(([key, title]) => {
      const label = element("label"), box = element("input", null, { type: "checkbox", value: key });
      box.checked = state.cols.includes(key);
      label.append(box, title);
      return label;
    }));
  };

  // --- the table -------------------------------------------------------------------------------------------------
  const build = () => {
    board = boards.find((one) => one.id === state.board) ?? boards.find((one) => one.rows.some((row) => row.rank !== null)) ?? boards[0];
    state.board = board.id;
    state.cols ??= firstColumns();
    fill("board", boards.map((one) => [one.id, `${one.title} (${one.rows.length})`]), null, board.id);
    fillFilters();
    $("search").value = state.q;
    for (const key of ["ranked", "complete"]) $(key).checked = state[key];
    selected = new Set(state.select.filter((id) => board.rows.some((row) => idOf(row) === id)));
    if (table) { table.destroy(); $("rows").querySelectorAll("thead, tbody, tfoot, colgroup").forEach((part) => part.remove()); }
    const [name, way] = state.sort.split(":"), all = columns();
    const by = all.findIndex((column) => column.name === name), group = all.findIndex((column) => column.name === "group");
    table = jQuery("#rows").DataTable({
      data: board.rows, columns: all, pageLength: PER_PAGE, lengthMenu: [25, 50, 100, 500], autoWidth: false,
      ...(group < 0 ? {} : { orderFixed: { pre: [[group, "asc"]] } }),
      order: by < 0 ? [] : [[by, way === "asc" ? "asc" : "desc"]], layout: { topStart: null, topEnd: null, bottomStart: "info", bottomEnd: ["pageLength", "paging"] },
      createdRow: (tr, row) => { tr.classList.toggle("unranked", row.rank === null && !board.kind); tr.classList.toggle("measured", board.kind !== undefined && row.runs.length > 0); tr.classList.toggle("selected", selected.has(idOf(row))); },
      language: { emptyTable: "No rows", zeroRecords: "No row passes the filters" },
    });
    if (group >= 0) table.on("draw.dt", headings);
    table.search.fixed("filters", (_, row) => passes(row));
    table.search(state.q);
    table.on("order.dt", () => { const [first] = table.order(); state.sort = first && first.length ? `${all[first[0]].name}:${first[1]}` : ""; toAddress(); later(); });
    table.draw();
    after();
  };
  // A line above the first row of a group on the page.
  const headings = () => {
    const body = $("rows").tBodies[0];
    let last = "";
    for (const tr of [...body.rows]) {
      const group = table.row(tr).data()?.group ?? "";
      if (group && group !== last) { const line = body.insertRow(tr.rowIndex - body.rows[0].rowIndex); line.className = "group"; line.append(element("th", group, { colspan: "100", scope: "rowgroup" })); }
      last = group;
    }
  };
  const visible = () => table.rows({ search: "applied", order: "applied" }).data().toArray();
  const after = () => {
    const rows = visible(), unranked = board.rows.filter((row) => row.rank === null).length;
    $("about").textContent = `${rows.length} of ${board.rows.length} rows of ${board.title}${board.about ? `, ${board.about}` : ""}`
      + (unranked && !board.kind ? `; ${unranked} not ranked (open a row for the reason)` : "")
      + (board.compared > 1 ? `. Rank intervals compare ${board.compared} rows; rows in a tied group do not differ significantly` : "")
      + (board.digest ? `. Definition ${board.digest}.` : ".");
    $("how").hidden = board.compared < 2;
    $("difference").hidden = !board.picture;
    if (board.picture) $("difference_picture").src = board.picture;
    $("compare").disabled = selected.size < 2;
    toAddress(); comparison(); later();
  };
  // What stands below the table follows when the table has been drawn.
  const later = () => { clearTimeout(drawing); drawing = setTimeout(() => { ranks(); if (seen) pareto(visible()); }); };
  const filtered = () => { table.search(state.q).draw(); after(); };

  // --- ranks under each metric -----------------------------------------------------------------------------------
  // Which rows have a place: the ranked ones, or all of a board that has none.
  const counts = () => board.rows.some((row) => row.rank !== null) ? (row) => row.rank !== null : () => true;
  // Value → its rank among these, computed once for a column.
  const placesBy = (metric, index) => {
    board.places ??= [];
    if (!board.places[index]) {
      const values = board.rows.filter(counts()).map((row) => number(row.values[index])).filter((value) => value !== null);
      const found = board.places[index] = new Map();
      Float64Array.from(values, (value) => -metric.better * value).sort().forEach((value, place) => { const own = -metric.better * value; if (!found.has(own)) found.set(own, place + 1); });
      found.count = values.length;
    }
    return board.places[index];
  };
  const ranks = () => {
    const rows = visible().filter(counts()).slice(0, MOST_RANKED);
    const used = board.metrics.map((metric, index) => [metric, index]).filter(([metric]) => metric.better !== 0 && (metric.of !== "near" && metric.of !== "far" || ["auroc", "fpr95", "autc", "conformal_auroc", "oscr"].some((key) => metric.id.endsWith(`.${key}`))));
    $("ranks_of").textContent = board.rows.some((row) => row.rank !== null) ? "ranked row" : "row (this board ranks none; places are among these rows)";
    if (!rows.length) { $("ranks").replaceChildren(element("p", "No ranked row passes the filters.")); return; }
    const made = element("table", null, { class: "ranks" }), head = made.createTHead().insertRow();
    head.append(element("th", "Method", { scope: "col" }), ...used.map(([metric]) => element("th", metric.title, { scope: "col" })));
    const placed = used.map(([metric, index]) => placesBy(metric, index));
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      line.append(element("th", row.method, { scope: "row" }));
      used.forEach(([, index], which) => {
        const value = number(row.values[index]), place = value === null ? null : placed[which].get(value);
        const cell = element("td", place ?? "");
        if (place !== null) cell.style.background = `rgba(var(--heat), ${(0.4 * (1 - (place - 1) / Math.max(1, placed[which].count - 1))).toFixed(3)})`;
        line.append(cell);
      });
    }
    $("ranks").replaceChildren(made);
  };

  // --- comparing rows --------------------------------------------------------------------------------------------
  const comparison = () => {
    const rows = board.rows.filter((row) => selected.has(idOf(row)));
    const section = $("comparison");
    if (rows.length < 2) { section.hidden = true; return; }
    const made = element("table", null, { class: "compared" }), head = made.createTHead().insertRow();
    head.append(element("th", "", { scope: "col" }), ...rows.map((row) => element("th", row.method, { scope: "col" })));
    const body = made.createTBody();
    for (const [key, title] of TEXTS) {
      if (new Set(rows.map((row) => row[key])).size < 2) continue;
      const line = body.insertRow();
      line.append(element("th", title, { scope: "row" }), ...rows.map((row) => element("td", row[key])));
    }
    board.metrics.forEach((metric, index) => {
      const values = rows.map((row) => number(row.values[index]));
      if (values.every((value) => value === null)) return;
      const line = body.insertRow(), best = bestOf(rows, index, metric.better);
      line.append(element("th", metric.title, { scope: "row" }));
      values.forEach((value, which) => {
        const cell = element("td", value === null ? "" : metric.id.endsWith(".apart") ? signed(value) : percent(value));
        if (which && metric.better !== 0 && value !== null && values[0] !== null) { cell.append(" ", element("small", signed(value - values[0]))); }
        if (value !== null && value === best) cell.classList.add("best");
        line.append(cell);
      });
    });
    for (const [key, title] of COSTS) { const line = body.insertRow(); line.append(element("th", title, { scope: "row" }), ...rows.map((row) => element("td", row[key] ?? ""))); }
    section.hidden = false;
    section.querySelector(".table").replaceChildren(made);
  };

  // --- score against cost ----------------------------------------------------------------------------------------
  const withPlotly = (then) => {
    if (window.Plotly) { then(); return; }
    if (withPlotly.waiting) { withPlotly.waiting.push(then); return; }
    withPlotly.waiting = [then];
    const script = element("script", null, { src: "assets/plotly.js" });
    script.onload = () => withPlotly.waiting.forEach((one) => one());
    document.body.append(script);
  };
  const pareto = (rows) => withPlotly(() => {
    const index = ["near.auroc", "far.auroc"].map((id) => board.metrics.findIndex((metric) => metric.id === id)).find((found) => found >= 0) ?? -1;
    const points = index < 0 ? [] : rows.map((row) => ({ row, x: row.ms, y: number(row.values[index]) })).filter(({ x, y }) => x !== null && x > 0 && y !== null);
    const css = getComputedStyle(document.documentElement), colour = css.getPropertyValue("--text").trim(), line = css.getPropertyValue("--line").trim();
    const front = points.filter(({ x, y }) => !points.some((other) => other.x <= x && other.y >= y && (other.x < x || other.y > y))).sort((a, b) => a.x - b.x);
    // A few methods that fail would squeeze the others into a line: nine rows in ten are shown at first.
    const heights = points.map(({ y }) => 100 * y).sort((a, b) => a - b), lowest = heights.length ? Math.max(0, Math.floor(heights[Math.floor(heights.length / 10)] - 3)) : 0;
    const below = heights.filter((y) => y < lowest).length;
    const traces = Object.entries(FAMILIES).map(([family, [fill, symbol]]) => {
      const own = points.filter(({ row }) => (methods[row.method]?.reads ?? "") === family);
      return { type: "scatter", mode: "markers", name: family || "unknown", x: own.map((p) => p.x), y: own.map((p) => 100 * p.y), text: own.map(({ row }) => escaped(row.method)), hovertemplate: "%{text}<br>%{y:.2f} %<br>%{x:.3g} ms<extra></extra>", marker: { color: fill, symbol, size: 9, line: { width: 1, color: css.getPropertyValue("--ground").trim() } } };
    }).filter((trace) => trace.x.length);
    traces.push({ type: "scatter", mode: "lines+text", name: "Pareto front", x: front.map((p) => p.x), y: front.map((p) => 100 * p.y), text: front.map(({ row }) => escaped(row.method)), textposition: "top center", textfont: { size: 11 }, line: { color: colour, width: 1, dash: "dot" }, hoverinfo: "skip" });
    const axis = { gridcolor: line, zeroline: false, automargin: true };
    Plotly.react("pareto", traces, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour, family: "system-ui, sans-serif" }, margin: { t: 10, r: 10 }, hovermode: "closest",
      yaxis: { ...axis, range: [lowest, 101], title: { text: `${index < 0 ? "" : board.metrics[index].title} (%)` } },
      annotations: below ? [{ text: `${below} row${below === 1 ? "" : "s"} below ${lowest.toFixed(0)} %: double-click to zoom out`, xref: "paper", yref: "paper", x: 0, y: 0, showarrow: false, xanchor: "left", yanchor: "bottom" }] : [],
      xaxis: { ...axis, type: "log", title: { text: "milliseconds per image (log scale)" } }, legend: { orientation: "h", y: -0.25 },
    }, { responsive: true, displaylogo: false, displayModeBar: false });
  });

  // --- one row ---------------------------------------------------------------------------------------------------
  const withRecord = (id, then) => {
    if (openbench.records?.[id]) { then(openbench.records[id]); return; }
    const script = element("script", null, { src: `records/${encodeURIComponent(id.slice(0, 2))}.js` });
    script.onload = () => then(openbench.records?.[id] ?? null);
    script.onerror = () => then(null);
    document.body.append(script);
  };
  const list = (entries) => {
    const made = element("dl");
    for (const [name, value] of entries) if (value !== "" && value !== null && value !== undefined) made.append(element("dt", name), element("dd", typeof value === "object" ? JSON.stringify(value) : value));
    return made;
  };
  const block = (title, value, open = false) => {
    const made = element("details"); made.open = open;
    made.append(element("summary", title), element("pre", JSON.stringify(value, null, 2)));
    return made;
  };
  const open = (row) => {
    state.open = idOf(row); toAddress();
    const body = $("row_body"), facts = methods[row.method] ?? {};
    body.replaceChildren(element("h2", `${row.method} on ${board.benchmark}`, { id: "row_title" }));
    if (row.reasons.length) { const why = element("ul"); row.reasons.forEach((reason) => why.append(element("li", reason))); body.append(element("p", "Not ranked, because:"), why); }
    body.append(list([["score", facts.summary], ["year", facts.year], ["inputs", facts.reads], ["needs", (facts.needs ?? []).join(", ")], ["training", row.training], ["backbone", row.backbone], ["hyper-parameters", row.settings], ["tuned on", row.tuned], ["runs", row.runs.join(", ")], ["networks", row.networks]]));
    // Nobody publishes figures of released weights: those of plain training come closest.
    const training = row.training === "released weights" ? "cross_entropy" : row.training;
    const others = board.published.filter((figure) => figure.method === row.method && figure.training === training && figure.augment === row.augment);
    if (others.length) {
      const made = element("table", null, { class: "compared" }), head = made.createTHead().insertRow(), lines = made.createTBody();
      head.append(...["backbone", "near AUROC", "far AUROC", "ours − published (near, far)", "source"].map((title) => element("th", title, { scope: "col" })));
      const ours = ["near.auroc", "far.auroc"].map((id) => number(row.values[board.metrics.findIndex((metric) => metric.id === id)]));
      for (const figure of others) {
        const theirs = [number(figure.near), number(figure.far)], same = figure.backbone === row.backbone && figure.training === row.training;
        const apart = same ? theirs.map((value, which) => value === null || ours[which] === null ? "–" : (100 * (ours[which] - value)).toFixed(2)).join(", ") : "another network";
        lines.insertRow().append(element("th", figure.backbone, { scope: "row" }), ...theirs.map((value) => element("td", value === null ? "" : percent(value))), element("td", apart), element("td", figure.source));
      }
      body.append(element("h3", "Published results"), made);
    }
    const rest = element("div", row.source && !row.runs.length ? `Published, not verified here: ${row.source}.` : "Loading…"); body.append(rest);
    if (row.runs.length || !row.source) withRecord(row.runs[0] ?? "", (record) => {
      if (!record) { rest.textContent = "The site does not contain this record."; return; }
      const made = record.provenance ?? {}, check = record.checked;
      const how = check && (check.made_from === "scores" ? "from its published scores" : "from the images");
      const checked = check ? `on ${check.utc.slice(0, 10)}, recomputed ${how}: ${check.reproduces ? "" : "does not reproduce: "}${check.said}, ${check.made_by}` : "no (verify --keep saves a check)";
      if (record.page) rest.before(element("a", "Report of this run, with plots", { href: record.page }));
      rest.replaceChildren(
        list([["verified", checked], ["scores", record.scores ?? "not published"], ["record", record.run_id], ["date", made.utc], ["openbench", made.openbench], ["commit", made.git_sha], ["device", made.device], ["weights", record.backbone?.weights_sha256], ["reference", record.method?.reference], ["conventions", record.header]]),
        block("Sets and their sizes", record.counts), block("Parameters", record.method?.params ?? {}), block("Tuning trials", record.trials), block("Config", record.config), block("Provenance", made),
        element("p", "To reproduce it: "), element("code", `python -m openbench verify ${record.run_id}`));
    });
    if (!$("row").open) $("row").showModal();
    body.parentElement.scrollTop = 0;
  };

  // --- CSV of what is shown --------------------------------------------------------------------------------------
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^\s*[=+\-@]/.test(text)) text = `'${text}`; // a spreadsheet would compute it
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = () => {
    const texts = TEXTS.filter(([key]) => state.cols.includes(key)), costs = COSTS.filter(([key]) => state.cols.includes(key));
    const numbers = board.metrics.map((metric, index) => [metric, index]).filter(([metric]) => state.cols.includes(metric.id));
    const lines = [["rank", "method", ...texts.map(([key]) => key), ...numbers.flatMap(([metric]) => [metric.id, `${metric.id} low`, `${metric.id} high`, `${metric.id} std`]), ...costs.map(([key]) => key), "runs", "not ranked because"]];
    for (const row of visible()) lines.push([row.rank, row.method, ...texts.map(([key]) => row[key]), ...numbers.flatMap(([, index]) => { const value = row.values[index]; return !Array.isArray(value) ? [value, null, null, null] : value.length === 2 ? [value[0], null, null, value[1]] : [...value, null]; }), ...costs.map(([key]) => row[key]), row.runs.join(" "), row.reasons.join("; ")]);
    return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  };
  openbench.csv = csv;

  // --- what the reader does --------------------------------------------------------------------------------------
  for (const id of ["training", "backbone", "reads", "since"]) $(id).addEventListener("change", () => { state[id] = $(id).value; filtered(); });
  $("board").addEventListener("change", () => { step(null); Object.assign(state, { board: $("board").value, cols: null, sort: "", select: [], open: "" }); build(); });
  $("search").addEventListener("input", () => { state.q = $("search").value; filtered(); });
  for (const key of ["ranked", "complete"]) $(key).addEventListener("change", () => { state[key] = $(key).checked; filtered(); });
  $("reset").addEventListener("click", () => { step(null); Object.assign(state, { q: "", training: "", backbone: "", reads: "", since: "", without: [], ranked: false, complete: false, cols: null, sort: "", select: [], open: "" }); needs(); build(); });
  $("column_list").addEventListener("change", (event) => {
    const key = event.target.value;
    state.cols = event.target.checked ? [...state.cols, key] : state.cols.filter((one) => one !== key);
    table.column(`${key}:name`).visible(event.target.checked);
    toAddress();
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("rows").addEventListener("click", (event) => {
    const tr = event.target.closest("tbody tr"), row = tr && table.row(tr).data();
    if (!row) return;
    if (event.target.matches(".open")) { step({ opened: true }); open(row); }
    if (event.target.matches("input[type=checkbox]")) {
      event.target.checked ? selected.add(idOf(row)) : selected.delete(idOf(row));
      tr.classList.toggle("selected", event.target.checked);
      state.select = [...selected];
      $("compare").disabled = selected.size < 2;
      comparison(); toAddress();
    }
  });
  $("compare").addEventListener("click", () => { comparison(); $("comparison").scrollIntoView({ behavior: "smooth" }); });
  $("csv").addEventListener("click", () => {
    const link = element("a", null, { download: `${board.id}.csv`, href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
    link.click(); URL.revokeObjectURL(link.href);
  });
  $("link").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(location.href); $("said").textContent = "Copied."; } catch { $("said").textContent = `The address of this page holds the view: ${location.href}`; }
  });
  // Closing undoes the step that opened the row; where the page began with it, there is no step.
  $("row").addEventListener("close", () => { if (!state.open) return; if (history.state?.opened) history.back(); else { state.open = ""; toAddress(); } });
  const needs = () => $("needs").replaceChildren(...NEEDS.map((need) => {
    const label = element("label"), box = element("input", null, { type: "checkbox", value: need });
    box.checked = state.without.includes(need);
    box.addEventListener("change", () => { state.without = NEEDS.filter((one) => $("needs").querySelector(`[value="${one}"]`).checked); filtered(); });
    label.append(box, need);
    return label;
  }));
  // A row of the view that is on the page opens or closes; the table stays as it is.
  const turn = () => {
    state.open = new URLSearchParams(location.hash.slice(1)).get("open") ?? "";
    const row = rowOf(state.open);
    if (row) open(row); else { state.open = ""; $("row").close(); }
  };
  const rowOf = (id) => id && board.rows.find((one) => idOf(one) === id || one.runs.includes(id));
  const start = () => {
    if (table && place() === drawn) { turn(); return; }
    fromAddress();
    if (!boards.length) { $("about").textContent = "There are no records yet."; return; }
    const opened = state.open;
    needs(); build();
    const row = rowOf(opened);
    if (row) open(row); else { state.open = ""; $("row").close(); toAddress(); }
  };
  // The picture's library is large, and many readers never come this far.
  new IntersectionObserver((found, observer) => {
    if (found.some((one) => one.isIntersecting) && table) { seen = true; observer.disconnect(); pareto(visible()); }
  }, { rootMargin: "300px" }).observe($("pareto"));
  window.addEventListener("hashchange", start);
  // The link's own way would put its target into the address, where the view is.
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("table").focus(); });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coloured = () => document.documentElement.classList.toggle("dark", dark.matches); // what DataTables looks at
  dark.addEventListener("change", () => { coloured(); if (seen) pareto(visible()); });
  coloured();
  start();
})();
