// Orders to the worker, each with its own answer.

/** What people can mend, in one line. */
export class Refused extends Error {}

/** A function of a kind of work and what it needs, which promises what the worker finds.
 *  told: called with what the worker says while it works. */
export function orders(worker, told = () => {}) {
  const waiting = new Map(); // number of an order -> [done, failed]
  let sent = 0;
  worker.addEventListener("message", ({ data: { number, found, line, isRefused, ...rest } }) => {
    if (number === undefined) return told(rest);
    const [done, failed] = waiting.get(number);
    waiting.delete(number);
    if (line === undefined) done(found);
    else failed(isRefused ? new Refused(line) : new Error(line));
  });
  return (kind, given) =>
    new Promise((done, failed) => {
      waiting.set(++sent, [done, failed]);
      worker.postMessage({ number: sent, kind, given });
    });
}
