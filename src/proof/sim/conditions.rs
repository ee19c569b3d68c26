//! The conditions of a world: what may happen, and which locks there are.

use super::basics::Random;

/// The conditions of a world: what may happen there.
#[allow(clippy::struct_excessive_bools)]
#[derive(Default)]
pub(super) struct Conditions {
    /// Threads wait for locks.
    pub(super) waits: bool,
    /// Polls are so rare that a waiter which is woken only by its poll is noticed. Nothing goes wrong except that
    /// waiters are killed, and that subscriptions are cut.
    pub(super) prompt: bool,
    /// Waiters are fair.
    pub(super) fair: bool,
    /// No process is killed, and no subscription cut.
    pub(super) orderly: bool,
    /// Everything takes its time there, so that contenders give up before one of them has the lock.
    pub(super) sluggish: bool,
    /// Threads pause for longer than subscriptions are kept.
    pub(super) lazy: bool,
    /// Nothing ever goes wrong here.
    pub(super) faultless: bool,
    /// All clients have the restart guard.
    pub(super) guarded: bool,
    /// All clients have the guard, and there are two or three servers behind each name.
    pub(super) fails_over: bool,
    /// All connections are over TLS: a server reads one write of each in a turn.
    pub(super) by_record: bool,
    pub(super) locks: Locks,
    course: Course,
}

/// The kinds of locks in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Locks {
    #[default]
    Plain,
    /// All are semaphores with this number of permits.
    Permits(u16),
    /// All are read and write locks, and plain ones.
    ReadWrite,
    /// All are on one or two names.
    Several,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Course {
    #[default]
    Usual,
    /// Little else goes wrong, and locks are held to their ends.
    Fragile,
    /// A client takes and drops one lock, about when servers close its connections. Then nothing follows.
    Forsaken,
    /// The servers behind each name are a set, whose sentinels name the master. Little else goes wrong. Whether a master
    /// without replicas refuses writes (`min-replicas-to-write`).
    Set(bool),
    /// They are a set without that, and masters that are cut off go on with the clients that are cut off with them: two may hold a lock.
    Careless,
}

impl Conditions {
    pub(super) fn draw(random: &mut Random) -> Conditions {
        let waits = random.chance(35);
        let prompt = waits && random.chance(45);
        let sluggish = prompt && random.chance(12);
        let lazy = waits && random.chance(4);
        let fair = waits && random.chance(35);
        let orderly = random.chance(70);
        let faultless = prompt || random.chance(5);
        let guarded = random.chance(30) && !prompt;
        let forsaken = !waits && random.chance(15);
        let fails_over = guarded && !forsaken && random.chance(70);
        Conditions {
            waits,
            prompt,
            fair,
            orderly,
            sluggish,
            lazy,
            faultless: faultless && !forsaken,
            guarded,
            fails_over,
            by_record: random.chance(30),
            locks: Locks::Plain,
            course: match forsaken {
                true => Course::Forsaken,
                false => Course::Usual,
            },
        }
    }

    pub(super) fn fragile(self) -> Conditions {
        Conditions {
            orderly: self.orderly,
            by_record: self.by_record,
            guarded: true,
            fails_over: true,
            course: Course::Fragile,
            ..Conditions::default()
        }
    }

    /// These conditions, but that the servers behind a name are a set.
    pub(super) fn of_set(self, min_replicas: bool) -> Conditions {
        Conditions {
            course: Course::Set(min_replicas),
            ..self.fragile()
        }
    }

    /// Has masters that are cut off go on with the clients that are cut off with them.
    pub(super) fn be_careless(&mut self) {
        self.course = Course::Careless;
    }

    pub(super) fn is_fragile(&self) -> bool {
        self.course == Course::Fragile || self.is_set()
    }

    pub(super) fn is_set(&self) -> bool {
        matches!(self.course, Course::Set(_) | Course::Careless)
    }

    pub(super) fn min_replicas(&self) -> bool {
        self.course == Course::Set(true)
    }

    /// Whether clients of a set, and a sentinel, may be cut off together with the master.
    pub(super) fn parts(&self) -> bool {
        self.min_replicas() || self.course == Course::Careless
    }

    /// Whether the clocks of servers may be set: clients watch them, and little hides them.
    pub(super) fn watches_clocks(&self) -> bool {
        self.guarded && !self.is_set() && !self.is_forsaken()
    }

    pub(super) fn is_forsaken(&self) -> bool {
        self.course == Course::Forsaken
    }

    /// How many may hold a lock, if it is a semaphore.
    pub(super) fn permits(&self) -> Option<u16> {
        match self.locks {
            Locks::Permits(permits) => Some(permits),
            _ => None,
        }
    }
}
