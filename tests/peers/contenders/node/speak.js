// The lines that a contender speaks on standard input and output: see tests/peers/README.md.
'use strict';
const readline = require('node:readline');
const Redis = require('ioredis').default;

// Microseconds of the monotonic clock, which all processes of a machine share.
const now = () => process.hrtime.bigint() / 1000n;
const say = (line) => process.stdout.write(line + '\n');
const oneLine = (text) => String(text).split(/\s+/).join(' ');

// A client for each node, with the default options of ioredis.
exports.clients = () =>
  process.env.NODES.split(',').map((url) => {
    const client = new Redis(url);
    client.on('error', () => {});
    return client;
  });

// The library says by itself that a lock is lost.
exports.gone = (name, error) => say(`gone name=${name} end=${now()} text=${oneLine(error)}`);
exports.busy = (text) => ['busy', text];
exports.lost = (text) => ['lost', text];
// `left` in milliseconds, or `kept`.
exports.held = (left) => ['ok', left === 'kept' ? 'left=kept' : `left=${Math.max(0, Math.round(left * 1000))}`];

async function answer(contender, [what, name, ttl, wait]) {
  if (what === 'write') return ['ok', ''];
  if (what === 'wall') return ['ok', `number=${Date.now()}`];
  if (!contender[what]) return ['none', ''];
  try {
    return (await contender[what](name, Number(ttl), Number(wait))) || ['ok', ''];
  } catch (error) {
    // A number in version 4, a list of promises in version 5.
    const attempts = Array.isArray(error.attempts) ? await Promise.all(error.attempts) : [];
    const votes = attempts.flatMap((attempt) => [...(attempt.votesAgainst || [])].map((vote) => vote[1]));
    const causes = [...new Set(votes.map((cause) => cause.message))];
    // The one error of extensions that says so plainly.
    const word = what === 'extend' && /already.expired/.test(error.message) ? 'lost' : 'failed';
    return [word, [`${error.name}: ${error.message}`, ...causes].join('; ')];
  }
}

exports.speak = async (ready, contender) => {
  process.on('unhandledRejection', () => {});
  say(`ready ${ready}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const begin = now();
    const [word, more] = await answer(contender, line.split(' '));
    const text = /^(left|number)=/.test(more) ? more : more && `text=${oneLine(more)}`;
    say(`${word} begin=${begin} end=${now()} ${text}`);
  }
  process.exit(0);
};
