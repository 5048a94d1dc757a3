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

/** Throws a line for the reader where a file is no trace. */
async function read(Reading, files, root) {
  const next = Reading(root);
  for (const [number, file] of files.entries()) {
    const tooLarge = next.begin(file.name, await sizeOf(file));
    if (tooLarge) throw new Error(tooLarge);
    for (let at = 0; at < file.size; at += PIECE) {
      const share = Math.round((100 * at) / file.size);
      postMessage({ progress: `Reading ${file.name}, ${number + 1} of ${files.length}: ${share} % …` });
      const wrong = next.feed(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()));
      if (wrong) throw new Error(wrong);
    }
    const wrong = next.end();
    if (wrong) throw new Error(wrong);
  }
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
