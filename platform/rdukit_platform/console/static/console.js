// Says when the platform does not answer, keeps logs scrolled to their end and the page's name in sight, and asks
// before a cancel. It adds a button that copies to commands, snippets, logs and ids: what has data-copy, and each pre.
// htmx does the rest: fragments name themselves, when they are asked for again, and stop asking when nothing can change.
(function () {
  "use strict";
  function lost(is) { document.getElementById("lost").hidden = !is; }
  document.addEventListener("htmx:sendError", function () { lost(true); });
  document.addEventListener("htmx:timeout", function () { lost(true); });
  document.addEventListener("htmx:responseError", function (event) { lost(event.detail.xhr.status >= 500); });
  document.addEventListener("htmx:afterRequest", function (event) { if (event.detail.successful) { lost(false); } });

  function scrollLogs() {
    document.querySelectorAll("pre.log").forEach(function (log) { log.scrollTop = log.scrollHeight; });
  }
  document.addEventListener("htmx:beforeSwap", function (event) {
    var log = event.target.querySelector && event.target.querySelector("pre.log");
    event.target.dataset.follow = !log || log.scrollTop + log.clientHeight > log.scrollHeight - 30 ? "1" : "";
    event.detail.keepAt = log ? log.scrollTop : 0;
    keep = { follow: event.target.dataset.follow, at: event.detail.keepAt };
  });
  var keep = { follow: "1", at: 0 };
  document.addEventListener("htmx:afterSwap", function (event) {
    var log = event.target.querySelector && event.target.querySelector("pre.log");
    if (log) { log.scrollTop = keep.follow ? log.scrollHeight : keep.at; }
  });
  // The clipboard is closed to pages of other hosts without https; there a selection is copied the older way.
  function copyText(source) {
    if (navigator.clipboard) { return navigator.clipboard.writeText(source.textContent); }
    window.getSelection().selectAllChildren(source);
    return document.execCommand("copy") ? Promise.resolve() : Promise.reject(new Error("not allowed"));
  }
  function addCopyButtons() {
    document.querySelectorAll("main pre:not([data-copied]), main [data-copy]:not([data-copied])").forEach(function (source) {
      var button = document.createElement("button"), place = source;
      source.dataset.copied = "1";
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + source.textContent.trim().slice(0, 60));
      if (source.tagName === "PRE") {
        place = document.createElement("div");
        place.className = "copyable";
        source.replaceWith(place);
        place.append(source, button);
      } else {
        source.after(button);
      }
      button.addEventListener("click", function () {
        copyText(source).then(function () { return "Copied"; }, function () { return "Press Ctrl+C"; }).then(function (words) {
          button.textContent = words;
          document.getElementById("said").textContent = words;
          window.setTimeout(function () { button.textContent = "Copy"; }, 2000);
        });
      });
    });
  }
  document.addEventListener("htmx:afterSettle", addCopyButtons);
  document.addEventListener("DOMContentLoaded", function () {
    addCopyButtons();
    scrollLogs();
    var nav = document.querySelector("nav"), here = nav && nav.querySelector("[aria-current]");
    if (here) { nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.clientWidth) / 2; }
  });
  document.addEventListener("submit", function (event) {
    var button = event.submitter;
    var question = button && button.getAttribute("data-ask") || event.target.getAttribute("data-ask");
    if (question && !window.confirm(question)) { event.preventDefault(); }
  });
})();
