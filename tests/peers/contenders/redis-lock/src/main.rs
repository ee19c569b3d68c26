//! `lock_across`, for one resource on several nodes. It locks around a future; here that future waits for the release.
//! The connections are those of the example in its documents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis_lock::{lock_across, LockAcrossError, LockAcrossOptions};
use speak::{Contender, Said};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, Mutex};
use tokio::task::JoinHandle;

type Held = (oneshot::Sender<()>, JoinHandle<Result<(), LockAcrossError>>);

struct RedisLock {
    runtime: Runtime,
    connections: Vec<Arc<Mutex<MultiplexedConnection>>>,
    locks: HashMap<String, Held>,
}

impl Contender for RedisLock {
    fn acquire(&mut self, name: &str, ttl: Duration, wait: Duration) -> Said {
        let (began, begun) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let (connections, resource) = (self.connections.clone(), name.to_owned());
        let options = LockAcrossOptions {
            ttl,
            duration: wait,
            ..LockAcrossOptions::default()
        };
        let work = async move {
            let _ = began.send(());
            let _ = ended.await;
        };
        let task = async move { lock_across(&connections, &resource, work, options).await };
        let task = self.runtime.spawn(task);
        if self.runtime.block_on(begun).is_ok() {
            self.locks.insert(name.to_owned(), (end, task));
            return Said::Ok;
        }
        match self.runtime.block_on(task) {
            Ok(Err(error)) => Said::failed(error),
            other => Said::failed(format!("{other:?}")),
        }
    }

    fn release(&mut self, name: &str) -> Said {
        let Some((end, task)) = self.locks.remove(name) else {
            return Said::lost("no lock");
        };
        let _ = end.send(());
        match self.runtime.block_on(task) {
            Ok(Ok(())) => Said::Ok,
            Ok(Err(error)) => Said::failed(error),
            Err(error) => Said::failed(error),
        }
    }
}

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let connect = |node: String| {
        let client = redis::Client::open(node).expect("a good address");
        let connection = runtime.block_on(client.get_multiplexed_async_connection());
        Arc::new(Mutex::new(connection.expect("a connection")))
    };
    let connections = speak::nodes().into_iter().map(connect).collect();
    let ready = "library=redis-lock version=0.5.1 wait=given";
    speak::speak(
        ready,
        RedisLock {
            runtime,
            connections,
            locks: HashMap::new(),
        },
    );
}
