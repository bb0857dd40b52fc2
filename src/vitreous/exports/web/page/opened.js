// Before everything else, and without modules: says why the page cannot begin.

(function () {
  function say(line) {
    var place = document.getElementById("unopened") || document.querySelector("main").insertBefore(document.createElement("p"), document.querySelector("main").firstChild);
    var give = document.getElementById("give");
    place.textContent = line;
    place.className = "note bad";
    if (give) give.hidden = true; // its buttons do nothing
  }

  function begin() {
    if (location.protocol === "file:")
      say("This page was opened from a file, and browsers let such a page load no model. In its folder run: python -m http.server 8000, then open http://127.0.0.1:8000/ (or put the folder on any web host).");
  }

  addEventListener("error", function (event) {
    var file = event.target && event.target.src;
    if (!file || location.protocol === "file:") return;
    fetch(file).then(function (answer) {
      var name = file.split("/").pop(), kind = answer.headers.get("content-type") || "no type";
      if (!answer.ok) say("The host has no " + name + " (" + answer.status + "); upload the whole folder.");
      else if (kind.indexOf("javascript") < 0) say("The host sends " + name + " as " + kind + ", so the browser does not run it; set the host to send .js files as text/javascript.");
      else say(name + " cannot be run; upload the whole folder again, or use a browser of 2023 or later.");
    }, function () { say("The host does not answer; load the page again."); });
  }, true);

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
