// RedlockMutex, which renews its lock by itself and calls back when it is lost.
'use strict';
const { RedlockMutex, TimeoutError } = require('redis-semaphore');
const { clients, speak, gone, held, busy, lost } = require('./speak');

const nodes = clients();
const locks = new Map();

speak('library=redis-semaphore version=5.8.0 wait=given', {
  async acquire(name, ttl, wait) {
    const onLockLost = (error) => gone(name, error);
    const mutex = new RedlockMutex(nodes, name, { lockTimeout: ttl, acquireTimeout: wait, onLockLost });
    try {
      await mutex.acquire();
    } catch (error) {
      if (error instanceof TimeoutError) return busy(error.message);
      throw error;
    }
    locks.set(name, mutex);
    return held('kept');
  },
  async release(name) {
    if (!locks.has(name)) return lost('no lock');
    const mutex = locks.get(name);
    locks.delete(name);
    await mutex.release();
  },
  async check(name) {
    return locks.has(name) && locks.get(name).isAcquired ? held('kept') : lost('isAcquired is false');
  },
});
