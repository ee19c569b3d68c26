// The Lock of etcd3: a key under a lease, which it renews by itself. It tries once. (Its lease is not public, and reports the loss.)
'use strict';
const { Etcd3, EtcdLockFailedError } = require('etcd3');
const { speak, gone, held, busy, lost } = require('./speak');

const client = new Etcd3({ hosts: process.env.NODES.split(',').map((node) => `http://${node}`) });
const locks = new Map();

speak('library=etcd3(npm) version=1.1.2 wait=0 leased=yes', {
  async acquire(name, ttl) {
    const lock = client.lock(name).ttl(Math.ceil(ttl / 1000));
    try {
      await lock.acquire();
    } catch (error) {
      if (error instanceof EtcdLockFailedError) return busy(error.message);
      throw error;
    }
    lock.lease.on('lost', (error) => gone(name, error));
    locks.set(name, lock);
    return held('kept');
  },
  async release(name) {
    if (!locks.has(name)) return lost('no lock');
    const lock = locks.get(name);
    locks.delete(name);
    await lock.release();
  },
  async check(name) {
    return locks.has(name) && !locks.get(name).lease.revoked() ? held('kept') : lost('the lease is revoked');
  },
  // The revision at which the lock's key was made.
  async fence(name) {
    const { kvs } = await client.get(name).exec();
    return kvs.length ? ['ok', `number=${kvs[0].create_revision}`] : lost('no key');
  },
});
