'use strict';
const Redlock = require('redlock4');
const { clients, speak, held, lost } = require('./speak');

const redlock = new Redlock(clients());
redlock.on('clientError', () => {});
const locks = new Map();
const took = (name, lock) => {
  locks.set(name, lock);
  return held(lock.expiration - Date.now());
};

// Ten retries, 200 to 300 ms apart.
speak('library=redlock(npm) version=4.2.0 wait=3000', {
  async acquire(name, ttl) {
    return took(name, await redlock.lock(name, ttl));
  },
  async release(name) {
    if (!locks.has(name)) return lost('no lock');
    const lock = locks.get(name);
    locks.delete(name);
    await lock.unlock();
  },
  async extend(name, ttl) {
    return locks.has(name) ? took(name, await locks.get(name).extend(ttl)) : lost('no lock');
  },
  // All that it offers: the lock's `expiration`, to compare with the clock.
  async check(name) {
    const left = locks.has(name) ? locks.get(name).expiration - Date.now() : 0;
    return left > 0 ? held(left) : lost('past its expiration');
  },
});
