// Streams a chat of the playground into the page, from one endpoint or from two side by side, until it ends or Stop is
// pressed. Without it the form does the same in one piece. Text is only ever set as text, never as HTML.
(function () {
  "use strict";
  var form = document.querySelector("form[data-stream]"), running = null;
  if (!form || !window.ReadableStream || !window.AbortController) { return; }
  var send = form.querySelector('button[value="call"]'), stop = form.querySelector("[data-stop]");
  var fresh = form.querySelector('button[value="new"]'), said = document.getElementById("said");

  function add(parent, tag, style, text) {
    var made = document.createElement(tag);
    made.className = style || "";
    if (text !== undefined) { made.textContent = text; }
    parent.append(made);
    return made;
  }
  function panel(parent, style, title) {
    var section = add(parent, "section", "panel chat " + style);
    add(section, "h2", "small quiet", title);
    return { section: section, text: add(section, "p", "said"), value: "", tokens: 0, finish: "" };
  }
  function figure(list, name, words) {
    var row = add(list, "div");
    add(row, "dt", "", name);
    add(row, "dd", "", words);
  }
  function count(number, word) { return number + " " + word + (number === 1 ? "" : "s"); }
  function showFigures(into, usage, seconds) {
    var list = add(into.section, "dl", "figures small");
    if (usage.first_s) { figure(list, "first token", Math.round(usage.first_s * 1000) + " ms"); }
    if (usage.rate) { figure(list, "generation", usage.rate.toFixed(1) + " tokens/s"); }
    figure(list, "total", seconds.toFixed(2) + " s");
    if (usage.prompt_tokens !== undefined) {
      figure(list, "prompt", count(usage.prompt_tokens, "token") + (usage.cached_tokens ? ", " + usage.cached_tokens + " of them cached" : ""));
    }
    if (usage.completion_tokens !== undefined) {
      figure(list, "generated", count(usage.completion_tokens, "token") + (into.finish ? ", ended by " + into.finish : ""));
    } else if (into.finish) { figure(list, "ended by", into.finish); }
  }
  function take(into, told) {
    if (told.tokens) {
      told.tokens.forEach(function (token) {
        var span = add(into.text, "span", token.shade === null ? "" : "shade" + token.shade, token.text);
        span.title = token.words;
      });
    } else if (told.text) { into.text.append(told.text); }
    into.value += told.text || "";
    if (told.finish) { into.finish = told.finish; }
    if (told.usage) { into.usage = told.usage; }
    if (told.error) { into.error = told.error; }
  }
  async function ask(into, url, data, signal) {
    var began = performance.now(), rest = "", decoder = new TextDecoder();
    try {
      var answer = await fetch(url, { method: "POST", body: data, signal: signal, redirect: "error" });
      if (!(answer.headers.get("content-type") || "").startsWith("application/x-ndjson")) {
        throw new Error("the platform answered " + answer.status + "; load the page again");
      }
      var reader = answer.body.getReader();
      for (;;) {
        var part = await reader.read();
        if (part.done) { break; }
        var lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
        rest = lines.pop();
        lines.filter(Boolean).forEach(function (line) { take(into, JSON.parse(line)); });
      }
    } catch (error) {
      if (signal.aborted) { into.finish = "Stop"; } else { into.error = error.message; }
    }
    if (into.error && !into.value) { into.text.remove(); }
    if (into.error) { add(into.section, "p", "error", into.error); }
    if (into.value || !into.error) { showFigures(into, into.usage || {}, (performance.now() - began) / 1000); }
  }
  function body(model) {
    var data = new URLSearchParams(new FormData(form));
    ["form", "beside", "act"].forEach(function (name) { data.delete(name); });
    if (model !== undefined) { data.set("model", model); }
    return data;
  }
  function setRunning(is) {
    send.disabled = is;
    stop.hidden = !is;
    (is ? stop : form.elements.prompt).focus();
  }
  async function play() {
    var log = document.getElementById("streamed"), prompt = form.elements.prompt.value;
    var own = form.dataset.stream, model = form.elements.model ? form.elements.model.value : "";
    var place = form.dataset.endpoint + (model ? "/" + model : "");
    var calls = [[place, own, body()]], beside = form.elements.beside.value;
    if (beside && beside !== place) {
      var slash = beside.indexOf("/"), other = slash < 0 ? beside : beside.slice(0, slash);
      calls.push([beside, own.replace(/[^/]+(?=\/playground\/stream$)/, other), body(slash < 0 ? "" : beside.slice(slash + 1))]);
    }
    running = new AbortController();
    log.setAttribute("aria-busy", "true");
    panel(log, "user", "user").text.textContent = prompt;
    var row = add(log, "div", "beside"), panels = calls.map(function (call) { return panel(row, "assistant", call[0]); });
    setRunning(true);
    await Promise.all(calls.map(function (call, at) { return ask(panels[at], call[1], call[2], running.signal); }));
    running = null;
    log.removeAttribute("aria-busy");
    if (panels[0].value) {
      var chat = JSON.parse(form.elements.history.value || "[]");
      var kept = Array.from(panels[0].value).slice(0, form.elements.prompt.maxLength).join("");  // as long as a message may be
      chat.push({ role: "user", content: prompt }, { role: "assistant", content: kept });
      form.elements.history.value = JSON.stringify(chat);
      form.elements.prompt.value = "";
      fresh.hidden = false;
    }
    said.textContent = panels[0].error ? "No answer" : panels[0].finish === "Stop" ? "Stopped" : "The answer is complete";
    setRunning(false);
  }
  form.addEventListener("submit", function (event) {
    if (event.submitter && event.submitter.value === "new") { return; }
    event.preventDefault();
    if (!running && form.elements.prompt.value.trim()) { play(); }
  });
  stop.addEventListener("click", function () { if (running) { running.abort(); } });
})();
