//! A virtual server: the instances behind one name, and its troubles.

use super::basics::{MS, RESOLUTION, Random};
use super::command::{channel, token};
use super::instance::Instance;
use super::sentinels::Sentinels;
use crate::errors::secret::Secret;
use crate::protocol::commands::companions::{Companion, WITNESS};
use crate::protocol::commands::resp::Reply;
use crate::protocol::node::witness_look::{self, WitnessLook};
use crate::testing::store::{Mood, StoredValue, members};

/// How far clocks differ: as much less as everything here.
const SKEW: u64 = 20 * MS;

pub(super) struct Server {
    /// The instances behind the name; the one that the name leads to; and the one that is being asked.
    pub(super) instances: Vec<Instance>,
    pub(super) named: usize,
    pub(super) asked: usize,
    /// The name has led to another instance before.
    pub(super) has_moved: bool,
    /// Until when the server has each trouble.
    troubles: [u64; Trouble::ALL],
    /// Until when the server did not take all that a client needs.
    pub(super) troubled_until: u64,
    /// Started again, replaced, flushed, set forward: with the restart guard it gives no votes for a while.
    pub(super) has_changed: bool,
    /// The instance that is being asked is the former master.
    pub(super) demoted: bool,
    pub(super) runs_no_scripts: bool,
    /// Its clocks are steady until they are set, and clients may read them.
    pub(super) clock_is_watched: bool,
    pub(super) sentinels: Sentinels,
}

#[derive(Clone, Copy)]
pub(super) enum Trouble {
    Paused,
    Slow,
    RefusesConnections,
    /// The server has no memory left, or does not permit commands that take memory.
    OutOfMemory,
    ForbidsQueues,
    LacksReplicas,
    /// The instance that the name leads to is a replica.
    Replica,
}

impl Trouble {
    const ALL: usize = Trouble::Replica as usize + 1;
}

impl Server {
    /// A server with this number of instances behind its name.
    pub(super) fn new(guarded: bool, instances: usize, random: &mut Random) -> Server {
        // With the restart guard clocks may differ by less than half of the longest ttl (rule R28).
        let skew = if guarded { SKEW } else { 10 * SKEW };
        Server {
            instances: (0..instances)
                .map(|at| Instance::new(skew, at > 0, random))
                .collect(),
            named: 0,
            asked: 0,
            has_moved: false,
            troubles: [0; Trouble::ALL],
            troubled_until: 0,
            has_changed: false,
            demoted: false,
            runs_no_scripts: random.chance(5),
            clock_is_watched: false,
            sentinels: Sentinels::default(),
        }
    }

    pub(super) fn watch_clock(&mut self) {
        self.clock_is_watched = true;
        let instances = self.instances.iter_mut();
        instances.for_each(|one| one.clock.steady());
    }

    pub(super) fn here(&self) -> &Instance {
        &self.instances[self.asked]
    }

    pub(super) fn here_mut(&mut self) -> &mut Instance {
        &mut self.instances[self.asked]
    }

    /// The server's time of day.
    pub(super) fn time(&self, t: u64) -> u64 {
        self.here().time(t)
    }

    /// The locks that the server has, and their tokens.
    pub(super) fn locks(&self, t: u64) -> impl Iterator<Item = (u8, usize)> {
        let time = self.time(t);
        let now = i64::try_from(time / 1000).unwrap();
        let keys = self.here().store.keys(time);
        keys.flat_map(move |(name, value, _)| {
            let tokens = match (name, value) {
                ([_], StoredValue::Text(text)) => vec![token(text)],
                ([_], StoredValue::Queue(all)) => all
                    .iter()
                    .filter(|member| member.0 >= now)
                    .map(|member| token(members::token(&member.1).unwrap()))
                    .collect(),
                _ => Vec::new(),
            };
            let tokens = tokens.into_iter();
            tokens.map(|token| (name[0], token))
        })
    }

    /// The processes in the queue of a resource, in order.
    pub(super) fn waiters(&self, t: u64, resource: u8) -> impl Iterator<Item = usize> {
        let queue = Companion::Queue.key(&[resource]).concat();
        let keys = self.here().store.keys(self.time(t));
        let mut queues = keys.filter(move |(name, ..)| *name == queue);
        let waiters = queues.find_map(|(_, value, _)| match value {
            StoredValue::Queue(all) => {
                Some(all.iter().map(|(_, member)| channel(member)).collect())
            }
            _ => None,
        });
        let waiters: Vec<usize> = waiters.unwrap_or_default();
        waiters.into_iter()
    }

    /// The tokens of permits, each with its slot.
    pub(super) fn slots(&self, t: u64) -> impl Iterator<Item = (usize, u16)> {
        let keys = self.here().store.keys(self.time(t));
        keys.flat_map(|(_, value, _)| {
            let StoredValue::Queue(all) = value else {
                return Vec::new();
            };
            let slot = |(_, member): &(i64, Vec<u8>)| {
                let text = std::str::from_utf8(member.get(9..12)?).ok()?;
                Some((token(members::token(member)?), text.parse().ok()?))
            };
            all.iter().filter_map(slot).collect()
        })
    }

    /// Whether a resource is locked, by any token.
    pub(super) fn has_key(&self, t: u64, resource: u8) -> bool {
        self.locks(t).any(|lock| lock.0 == resource)
    }

    pub(super) fn begin(&mut self, trouble: Trouble, until: u64) {
        self.troubles[trouble as usize] = until;
        // The keys beside locks are not needed.
        if !matches!(trouble, Trouble::ForbidsQueues) {
            self.troubled_until = self.troubled_until.max(until);
        }
    }

    pub(super) fn has(&self, trouble: Trouble, t: u64) -> bool {
        self.troubles[trouble as usize] > t
    }

    pub(super) fn is_paused(&self, t: u64) -> Option<u64> {
        let until = self.troubles[Trouble::Paused as usize];
        (until > t).then_some(until)
    }

    /// The uptime that the server reports: too long by less than the resolution.
    pub(super) fn uptime(&self, t: u64, random: &mut Random) -> u64 {
        self.here().age(t) / RESOLUTION * RESOLUTION + RESOLUTION * random.below(2)
    }

    /// Whether it lacks what some kinds of locks need.
    pub(super) fn lacks_scripts(&self) -> bool {
        self.runs_no_scripts
    }

    pub(super) fn flush_scripts(&mut self) {
        self.here_mut().store.flush_scripts();
    }

    /// Loses all keys. Returns whether there were any locks, and any counters.
    pub(super) fn forget(&mut self, t: u64) -> (bool, bool) {
        let locks = self.locks(t).next().is_some();
        let mut keys = self.here().store.keys(self.time(t));
        let counters = keys.any(|(name, ..)| name.ends_with(b":fence"));
        drop(keys);
        self.here_mut().store.clear();
        (locks, counters)
    }

    pub(super) fn mood(&self, t: u64) -> Mood {
        let full = self.has(Trouble::OutOfMemory, t);
        let forbids = self.troubles[Trouble::OutOfMemory as usize].is_multiple_of(2);
        Mood {
            read_only: self.demoted || self.here().is_replica,
            too_few_replicas: self.has(Trouble::LacksReplicas, t)
                || self.sentinels.is_lonely(t, self.asked),
            out_of_memory: full && !forbids,
            no_set: full && forbids,
            no_queue: self.has(Trouble::ForbidsQueues, t),
        }
    }

    /// Ends all troubles.
    pub(super) fn calm(&mut self) {
        self.troubles.fill(0);
    }

    pub(super) fn run_id(&self, node: usize, instance: usize) -> String {
        format!("{node}-{instance}-{}", self.instances[instance].run)
    }

    /// The result of a look at one of the instances.
    pub(super) fn look_at(&mut self, instance: usize, t: u64) -> WitnessLook {
        let run_id = self.run_id(0, instance);
        let here = &mut self.instances[instance];
        let time = here.time(t);
        let mut ask = |command: &[&[u8]]| {
            let reply = here.store.execute(time, command, &mut |_, _| 0);
            let parsed = crate::protocol::commands::resp::parse(&reply, &Secret::default());
            parsed.unwrap().unwrap().0
        };
        let [_, _, _, value, left, _] = witness_look::look(WITNESS);
        let (value, left) = (ask(&value), ask(&left));
        let before = u8::from(here.promoted);
        let replication = format!("{}master_replid2:{before}\r\n", here.replication());
        let info = |text: String| Reply::Bulk(text.into_bytes());
        let replies = vec![
            info(format!("run_id:{run_id}\r\n")),
            info(replication),
            info(here.stats()),
            value,
            left,
            info(here.commandstats()),
        ];
        WitnessLook::of(replies, &Secret::default()).unwrap()
    }

    /// The instance that a connection leads to: the one that the name leads to, or led to before.
    pub(super) fn resolve(&self, random: &mut Random) -> usize {
        let masters = (0..self.instances.len()).filter(|at| !self.instances[*at].is_replica);
        let masters: Vec<usize> = masters.collect();
        match random.chance(70) {
            true => self.named,
            false => masters[random.pick(masters.len())],
        }
    }

    pub(super) fn replicas(&self) -> Vec<usize> {
        let all = 0..self.instances.len();
        all.filter(|at| self.instances[*at].is_replica).collect()
    }

    /// A replica gets the data of the master.
    pub(super) fn copy_to(&mut self, replica: usize) {
        let master = &self.instances[self.named];
        let (data, history) = (master.store.clone(), master.history);
        let replica = &mut self.instances[replica];
        replica.store.take_data_of(data);
        replica.history = history;
        (replica.synced, replica.promoted) = (true, false);
    }

    /// Leaves one master: the one that the name leads to.
    pub(super) fn settle(&mut self) {
        for other in 0..self.instances.len() {
            if other != self.named && !self.instances[other].is_replica {
                self.demote_instance(other);
            }
        }
    }

    pub(super) fn demote_instance(&mut self, instance: usize) {
        self.sentinels.lonely.remove(&instance);
        let instance = &mut self.instances[instance];
        (instance.is_replica, instance.synced) = (true, false);
    }
}
