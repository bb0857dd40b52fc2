// The camera of this machine: a live picture with its answer, one photo of it, and off again.

import { Refused, who } from "./api.js";

const $ = (id) => document.getElementById(id);
const MOMENT_SIDE = 480, PAUSE = 150; // pixels; milliseconds between two answers
const REFUSED = "the camera was refused; allow it for this page in the browser's settings, or choose a file";
const NONE = "this machine has no camera; connect one, or choose a file";
const LINES = {
  NotAllowedError: REFUSED,
  SecurityError: REFUSED,
  NotFoundError: NONE,
  OverconstrainedError: NONE,
  NotReadableError: "the camera gives no picture; close other programs that use it and try again, or choose a file",
};

export class Camera {
  /** took: called with the photo, a file.  glance: gives the words for one moment.  complain: called with what went wrong. */
  constructor(took, glance, complain) {
    Object.assign(this, { took, glance, complain, stream: null, turn: 0 });
    $("live").checked = who.isHere; // a server gets no stream of photos unless people ask for it
    $("live").addEventListener("change", () => ($("live-says").textContent = "\u00a0"));
    if (who.isHere && navigator.mediaDevices) $("film").classList.remove("desk"); // a phone's camera answers live, too
    $("film").addEventListener("click", () => this.open().catch((error) => this.fail(error)));
    $("snap").addEventListener("click", () => this.snap().catch((error) => this.fail(error)));
    $("unfilm").addEventListener("click", () => this.close());
    $("filming").addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    addEventListener("pagehide", () => this.close());
    document.addEventListener("visibilitychange", () => document.hidden && this.close());
  }

  async open() {
    this.close();
    const { turn } = this;
    if (!navigator.mediaDevices) throw new Refused("browsers open the camera only for https or for the machine's own address, 127.0.0.1; choose a file");
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, height: { ideal: 720 }, facingMode: { ideal: "environment" } }, audio: false });
    } catch (error) {
      throw new Refused(LINES[error.name] ?? `the camera cannot be opened (${error.name}); choose a file`);
    }
    if (turn !== this.turn) return stop(stream); // closed while the browser asked
    this.stream = stream;
    stream.getVideoTracks()[0].addEventListener("ended", () => this.fail(new Refused("the camera went off; connect it again, or choose a file")));
    $("video").srcObject = stream;
    $("video").classList.toggle("mirror", stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    $("live-says").textContent = "\u00a0";
    $("filming").hidden = false;
    $("film").hidden = true;
    await $("video").play();
    $("snap").focus();
    await this.watch();
  }

  /** Answer one moment after another, as fast as answers come, until the camera is off. */
  async watch() {
    const { turn } = this;
    while (turn === this.turn) {
      const file = $("live").checked ? await this.moment(MOMENT_SIDE) : null;
      if (file && turn === this.turn) {
        const said = await this.glance(file);
        if (turn === this.turn && $("live").checked) $("live-says").textContent = said;
      }
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  }

  /** What the camera sees now, as a file; null while there is no picture.  side: of the longer side, in pixels. */
  async moment(side = Infinity) {
    const video = $("video"), still = document.createElement("canvas"), { videoWidth, videoHeight } = video;
    if (!videoWidth) return null;
    const scale = Math.min(1, side / Math.max(videoWidth, videoHeight));
    Object.assign(still, { width: Math.round(scale * videoWidth), height: Math.round(scale * videoHeight) });
    still.getContext("2d").drawImage(video, 0, 0, still.width, still.height);
    const blob = await new Promise((done) => still.toBlob(done, "image/jpeg", 0.95));
    return new File([blob], "camera.jpg", { type: blob.type });
  }

  async snap() {
    const file = await this.moment();
    if (!file) return;
    this.close();
    this.took(file);
  }

  fail(error) {
    this.close();
    this.complain(error);
  }

  close() {
    this.turn += 1;
    if (this.stream) stop(this.stream);
    this.stream = $("video").srcObject = null;
    $("filming").hidden = true;
    $("film").hidden = false;
  }
}

const stop = (stream) => stream.getTracks().forEach((track) => track.stop());
