// Python in a worker of its own: it reads traces by the piece and says what is wrong with a step.

import { startWith } from "./python.js";

const PIECE = 1 << 22; // bytes of a file that Python gets at a time
const LIKELY = 40; // a trace is JSON of 10 to 30 times its bytes as gzip

const started = startWith("playground.trace_reader.answer");
started.catch((error) => postMessage({ failed: `Python did not start in this tab: ${error.message}` }));
let reading = null; // the traces that were read last
let turn = Promise.resolve(); // questions are answered one after the other

/** Bytes of JSON, 0 where they are not known: a gzip file says at its end how many it holds (below 4 GB). */
async function sizeOf(file) {
  const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (first !== 0x1f || second !== 0x8b || file.size < 18) return file.size;
  const size = new DataView(await file.slice(-4).arrayBuffer()).getUint32(0, true);
  return size < LIKELY * file.size ? size : 0; // a file that was cut off has any four bytes there
}

/** What is no trace is left out; throws a line for the reader if no file is one. */
async function read(Reading, files, root) {
  const next = Reading(root);
  const unread = [];
  for (const [number, file] of files.entries()) {
    let wrong = next.begin(file.name, await sizeOf(file));
    for (let at = 0; at < file.size && !wrong; at += PIECE) {
      const share = Math.round((100 * at) / file.size);
      postMessage({ progress: `Reading ${file.name}, ${number + 1} of ${files.length}: ${share}% …` });
      wrong = next.feed(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()));
    }
    wrong ||= next.end();
    if (wrong) unread.push(wrong);
  }
  if (unread.length === files.length) throw new Error(unread[0]);
  return next;
}

async function answer({ files, examples, root, asked, at }) {
  const { Reading } = await started;
  try {
    if (at) return postMessage({ found: reading ? reading.at(at.rank, at.lane, at.time) : "" });
    if (examples) {
      files = await Promise.all(examples.map(async (name) => {
        const got = await fetch(new URL(`traces/${name}.json.gz`, import.meta.url));
        return new File([await got.blob()], `${name}.json.gz`);
      }));
    }
    if (files) reading = await read(Reading, files, root);
    if (reading) postMessage({ answer: reading.answer(asked) });
  } catch (error) { // a line for the reader, or of a traceback the one that says which mistake of ours
    postMessage({ failed: error.message.trim().split("\n").at(-1) });
  }
}

onmessage = ({ data }) => { turn = turn.then(() => answer(data)); };
