'use strict';
const { Redlock, default: Default, ResourceLockedError } = require('redlock5');
const { clients, speak, held, busy, lost } = require('./speak');

const redlock = new (Redlock || Default)(clients());
redlock.on('error', () => {});
const locks = new Map();
const took = (name, lock) => {
  locks.set(name, lock);
  return held(lock.expiration - Date.now());
};

// Ten retries, 100 to 300 ms apart.
speak('library=redlock(npm) version=5.0.0-beta2 wait=3000', {
  async acquire(name, ttl) {
    try {
      return took(name, await redlock.acquire([name], ttl));
    } catch (error) {
      if (error instanceof ResourceLockedError) return busy(error.message);
      throw error;
    }
  },
  async release(name) {
    if (!locks.has(name)) return lost('no lock');
    const lock = locks.get(name);
    locks.delete(name);
    await lock.release();
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
