// Says when the platform does not answer, keeps logs scrolled to their end and the page's name in sight, and asks
// before a cancel.
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
  document.addEventListener("DOMContentLoaded", function () {
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
