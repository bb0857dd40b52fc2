// The camera of this machine: a live picture, one photo of it, and off again.

import { Refused } from "./api.js";

const $ = (id) => document.getElementById(id);
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
  /** took: called with the photo, a file.  complain: called with what went wrong. */
  constructor(took, complain) {
    Object.assign(this, { took, complain, stream: null, turn: 0 });
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
      stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, height: { ideal: 720 } }, audio: false });
    } catch (error) {
      throw new Refused(LINES[error.name] ?? `the camera cannot be opened (${error.name}); choose a file`);
    }
    if (turn !== this.turn) return stop(stream); // closed while the browser asked
    this.stream = stream;
    stream.getVideoTracks()[0].addEventListener("ended", () => this.fail(new Refused("the camera went off; connect it again, or choose a file")));
    $("video").srcObject = stream;
    $("filming").hidden = false;
    $("film").hidden = true;
    await $("video").play();
    $("snap").focus();
  }

  async snap() {
    const video = $("video"), still = document.createElement("canvas");
    if (!video.videoWidth) return; // no picture yet
    Object.assign(still, { width: video.videoWidth, height: video.videoHeight });
    still.getContext("2d").drawImage(video, 0, 0);
    this.close();
    const blob = await new Promise((done) => still.toBlob(done, "image/jpeg", 0.95));
    this.took(new File([blob], "camera.jpg", { type: blob.type }));
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
