// The search needs a Worker, which browsers refuse to a page from disk. Such a page gets this one:
// a hidden frame runs the script, with the messages of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      this.ready = new Promise(resolve => {
        frame.onload = () => {
          const inner = frame.contentWindow;
          const script = frame.contentDocument.createElement("script");
          inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
          script.onload = () => resolve(inner);
          script.src = url;
          frame.contentDocument.head.append(script);
        };
      });
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      document.body.append(frame);
    }

    async postMessage(data) {
      const inner = await this.ready;
      inner.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
