//! Mutants: rules that can be broken on purpose, to show that the simulation would notice. The switches exist only in
//! tests.

#[cfg(test)]
use std::cell::Cell;

/// The promises that the simulation checks in each schedule. A mutant counts as found where it breaks the one beside it,
/// and not by another failure.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Locks that exclude each other are not valid at once.
    OneHolder,
    /// A lock is granted, extended and used before its deadline, and no extension shortens it.
    Deadline,
    /// A token is set once on each node, and not behind its release.
    TokenOnce,
    /// An answer rests on answers of enough nodes.
    SoundAnswer,
    /// The first lock of a program lies on all nodes that are well.
    OnAllNodes,
    /// Fencing numbers grow.
    FenceGrows,
    /// No key is left behind: undos and releases reach each node, in order.
    NothingLeft,
    /// A holder learns that its lock is lost, once and for all.
    LossReported,
    /// A lock that is kept alive ends by its bound or its nodes alone.
    KeepsLock,
    /// Where enough nodes serve a client, its calls do not fail.
    Available,
    /// No lock is free for long while a thread waits for it.
    Served,
    /// Waiters, and the claims of one, are served in order.
    InTurn,
    /// A call ends in its time.
    InTime,
    /// A program is asked whether to go on, and its bounds hold.
    Bounds,
    /// When all is quiet no thread, connection, waiter or subscription is left, and no lock counts as held.
    AllEnds,
    /// The simulated drivers are asked for nothing that real ones cannot do.
    Fits,
    /// None of these: unit tests find the mutant. The simulation lacks the part, or hardly any schedule shows it.
    UnitTest,
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident: $rule:ident = $breaks:literal => $promise:ident,)+) => {
        /// A way to break one rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(test), allow(dead_code))]
        pub(crate) enum Mutant {
            $($name,)+
        }

        /// Each mutant with the number of its rule, how it breaks that rule, and the promise that is not kept then.
        #[cfg(test)]
        pub(crate) const MUTANTS: &[(Mutant, &str, &str, Promise)] =
            &[$((Mutant::$name, stringify!($rule), $breaks, Promise::$promise),)+];
    };
}

mutants! {
    MarkAfterDeadline: R80 = "a holder whose validity is over marks its work as done" => UnitTest,
    OneMarkIsNone: R81 = "work that a minority of the answers shows as done is done again" => UnitTest,
    NeverRetryDeferred: R6b = "what a server has refused for now is not sent again without an operation" => NothingLeft,
    RightsAreForGood: R6b = "a release that a user may not carry out is not sent again, though the rights are given back" => UnitTest,
    FirstAddressSpeaks: R43 = "of several sentinels behind one name the first one that answers counts" => UnitTest,
    FewAddressesAreMost: R43 = "a master that few of the addresses of a name report counts as one that most of them report" => UnitTest,
    NamesCountTwice: R43 = "a sentinel that is given under two names has two votes" => UnitTest,
    OneSharedAddressIsAll: R43 = "a name of sentinels, one of which was heard under another name, has no vote" => UnitTest,
    AddressIsSentinel: R43 = "a sentinel that is given by two addresses has two votes" => UnitTest,
    WorkersStartNothing: R6b = "what a node refuses while it is connected anew is not sent again without an operation" => NothingLeft,
    OweNoShortening: R55 = "a shortening is not sent to a node that was away" => NothingLeft,
    LateShorteningBeginsAnew: R55 = "a shortening that comes late leaves the lock for as long as it could be held" => NothingLeft,
    LateShorteningReleases: R55 = "a shortening that comes late is a release" => OneHolder,
    ForgetDeferred: R6b = "a release that a server could not carry out at the time is dropped" => NothingLeft,
    ReuseToken: R2 = "a token is used for two tries" => TokenOnce,
    UndoOnlyGranted: R6 = "an acquire is undone only where it was granted" => NothingLeft,
    NoPings: R8 = "no pings over a new connection" => TokenOnce,
    ReplyToAnyOperation: R9 = "a reply counts for the operation that has the slot now" => SoundAnswer,
    DropReleaseWithConnection: R8 = "a release is dropped with its connection" => NothingLeft,
    ReleasesLast: R6 = "releases are written behind the operations" => TokenOnce,
    GoneIsHeld: R11 = "\"gone\" counts as held" => SoundAnswer,
    VoteCountsTwice: R9 = "a vote counts twice" => OneHolder,
    YesAfterUndo: R6 = "yes after the undo" => NothingLeft,
    NoWithoutQuorum: R9 = "no with fewer than a quorum of answers" => SoundAnswer,
    DeadlineFromAnswer: R3 = "the deadline counts from the answer" => OneHolder,
    TwoConnections: R7 = "two connections to one node are used" => NothingLeft,
    IgnoreFirstConnections: R13b = "first connections are not waited for" => OnAllNodes,
    LeaveBeforeUndo: R7 = "an unresponsive node is handed over before its undo is written" => NothingLeft,
    CloseWithoutReset: R8 = "a dead connection is closed and not reset" => TokenOnce,
    ExtendAfterDeadline: R10 = "an extension counts after the old deadline" => Deadline,
    ReleaseOnlyGranted: R6 = "a lock is released only where it was granted" => NothingLeft,
    ResendAcquire: R5 = "an acquire is sent again over a new connection" => TokenOnce,
    DropUnloadedRelease: R6a = "a release whose script was not loaded is dropped" => NothingLeft,
    DropReleaseWithQueue: R46 = "a release is dropped because the queue's key was refused" => NothingLeft,
    ShortenNatively: R12 = "without scripts, an extension shortens" => OneHolder,
    ShortenTooMuch: R55 = "a lock that is left for a time is shortened to less" => OneHolder,
    DoNotShorten: R55 = "shortening a lock leaves it as it is" => NothingLeft,
    VoteAfterRestart: R16 = "a restarted node votes at once" => OneHolder,
    IdentityIsRunId: R40 = "a server that was promoted is the same one" => OneHolder,
    NoWitness: R41 = "a grant counts without the witness" => OneHolder,
    AnyWitness: R41 = "a witness is not compared whole" => OneHolder,
    SecondLookTrustsFirst: R40 = "a witness of the server at the first look counts at the second one" => OneHolder,
    NoLooks: R42 = "a server that is connected is not looked at again" => OneHolder,
    IgnoreEvictions: R40 = "a server that evicts keys is the same one" => OneHolder,
    EvictionsAtConnection: R42 = "keys that are evicted while a connection lasts are not seen" => OneHolder,
    IgnoreSwaps: R40 = "a witness that SWAPDB has brought back fits" => UnitTest,
    BusyInfoIsNone: R40 = "a server that refuses INFO for now counts as one that has none" => UnitTest,
    EvictingIsCalm: R40 = "a server that has evicted keys before the first look has lost nothing" => OneHolder,
    CalmReadFirst: R40 = "that a server is calm is read before the witness is there" => OneHolder,
    IgnoreFlush: R40 = "a flush before the first look is not seen" => OneHolder,
    AlwaysCalm: R40 = "a server that was promoted or flushed votes at once" => OneHolder,
    GrantInMargin: R40 = "a lock is granted while the master before may go on" => OneHolder,
    ExtendInMargin: R44 = "a lock is extended while the master before may go on" => OneHolder,
    StepUnseen: R57 = "a clock that is set forward is not noticed" => OneHolder,
    LookBeforeAcquire: R56 = "a clock is read before the acquire" => UnitTest,
    LastLookOnly: R57 = "a clock is compared with the last look alone" => UnitTest,
    StepForgotten: R58 = "what is known of a clock ends with the connection" => OneHolder,
    BoundAcrossServers: R58 = "the clock of another server is compared with that of the one before" => Available,
    HalfStepWait: R59 = "a clock that was set forward is waited for half as long" => UnitTest,
    StepIsNotUndone: R59 = "an acquire that finds a step leaves its key" => NothingLeft,
    ExtendWhereverHeld: R60 = "an extension counts behind a step wherever the key is" => UnitTest,
    RepairHasCounted: R60 = "an extension counts behind a step where the lock was refilled" => UnitTest,
    RepairAfterRelease: R11b = "a repair is written behind the release" => TokenOnce,
    RepairVotes: R11b = "a repair counts as a vote" => SoundAnswer,
    NoReleaseOfRepairs: R11b = "a lock is not released where it was repaired" => NothingLeft,
    LargestFence: R21 = "the largest number of any quorum is a fencing token" => FenceGrows,
    FenceAfterDeadline: R22 = "a fencing token is given out after the deadline" => Deadline,
    RetryHasAllTime: R61 = "a second try has all the time of a first one" => InTime,
    OneSilentNode: R7 = "of several nodes that do not answer, only the last one is handed over to its worker" => UnitTest,
    ExpiryUnseen: R13 = "a kept lock that could not be renewed is not reported lost when its validity is over" => LossReported,
    SeveredEverywhere: R9 = "an operation fails at all nodes where the connection to one of them ends" => Available,
    NoTooEarly: R9 = "\"no\" before it is known whether any node granted it" => Available,
    ForgetNotification: R31 = "a notification during a try is forgotten" => Served,
    EnqueueAfterDenial: R34a = "a process enters the queue after its denial" => Served,
    SwallowNotification: R34a = "a waiter that gives up does not pass its notification on" => Served,
    NotifyTheDead: R34 = "dead processes are notified, and not skipped" => Served,
    HandOffReusesToken: R35a = "a hand-off uses the token again" => TokenOnce,
    NoTryAfterHandOff: R35a = "a waiter whose hand-off failed does not contend" => Served,
    NoWakeOnSubscribe: R30 = "a subscription that is confirmed anew wakes no waiter" => Served,
    EndlessReservation: R34c = "a reservation never ends" => InTurn,
    SleepThroughReservation: R34c = "a reserved process may be gone, and the others sleep" => Served,
    JumpTheQueue: R34c = "a process that enqueues goes before the first in the queue" => InTurn,
    NotifyOwnProcess: R34 = "a release in a process without waiters notifies that process" => Served,
    LateReleaseIsSilent: R34 = "a release that is sent late notifies no waiter" => Served,
    LateReleasePassesOver: R34 = "a release that is sent late passes over a thread of its own process that waits by then" => Served,
    NoReservation: R34c = "a lock is not reserved for the process that a release has notified" => InTurn,
    AnyFailureIsFinal: R62 = "a node that fails refuses for good" => SoundAnswer,
    NeverConfirm: R6a = "a release is not confirmed when nothing follows" => NothingLeft,
    ConfirmOnce: R6a = "a release that is sent again is not confirmed" => NothingLeft,
    UnreadRelease: R6a = "a release is not confirmed if an operation has waited for it" => NothingLeft,
    FailedNodesSlotStays: R47 = "a slot that a node grants after it was given up, while the acquire goes on, is not released" => UnitTest,
    LateSlotStays: R47 = "a slot that is granted behind the verdict is not released" => NothingLeft,
    AnySlotCounts: R47 = "a permit is a quorum of any slots" => OneHolder,
    ExtensionCountsAnySlot: R48 = "an extension of a permit counts any slot" => SoundAnswer,
    EndWithLast: R49 = "a set ends with the member that was added last" => OneHolder,
    MembersKeyKeepsItsEnd: R49a = "the key of permits and readers that move with their slot keeps its end" => UnitTest,
    MembersKeepTheirTimes: R49a = "permits and readers that move with their slot keep the times of the server before" => OneHolder,
    WriteBesideReaders: R49 = "a writer is granted beside readers" => OneHolder,
    SomeNames: R36 = "of several names a node locks those that are free" => OneHolder,
    ReleaseFirstName: R37 = "only the first of several names is released" => NothingLeft,
    KindsDoNotQueue: R34a = "permits, readers, writers and locks on several names enter no queue" => Served,
    QuietMembers: R51 = "a release of a permit or a read lock notifies no waiter" => Served,
    DoNotTellTheWriter: R51 = "a reader that a mark keeps out does not notify its writer" => Served,
    LeaveMark: R50 = "a writer that gives up leaves its mark" => UnitTest,
    KeepMessage: R52 = "a waiter for several names keeps a message about another name than it is denied for" => Served,
    LeaveForOthers: R52 = "a waiter that leaves queues takes its process out of them, and others wait there" => Served,
    ClaimsInAnyOrder: R52 = "a caller that waits for a name keeps its claims on later ones" => InTurn,
    KeepClaims: R52 = "claims are not released where the lock has not taken them over" => NothingLeft,
    KeepReplica: R38 = "a connection to a server that has become a replica is kept" => NothingLeft,
    GiveUpUnasked: R62 = "a call fails as busy without having asked a node" => SoundAnswer,
    KeepWhatCameTooLate: R6 = "a lock that was granted too late is not released" => AllEnds,
    FailedHandOffIsHeld: R35a = "a lock whose hand-off failed counts as held in the process" => AllEnds,
    ConnectUnasked: R13b = "a program is not asked whether to go on while first connections are waited for" => Bounds,
    AskSeldom: R33 = "a program is not asked after each sleep whether to go on" => Bounds,
    LeaveNoQueue: R35a = "a call that fails stays in the queue of its process" => Served,
    RenewLate: R63 = "a renewal is due after a whole ttl" => KeepsLock,
    RenewForEver: R63 = "a kept lock is renewed for longer than its bound" => Bounds,
    LossIsTriedAgain: R13 = "a renewal that finds the lock gone is tried again until the deadline" => Available,
    NoSecondRenewal: R63 = "a renewal that too few nodes answered is not tried again" => KeepsLock,
    SuspendUnseen: R82 = "what is due for a kept lock is not brought forward behind a suspend" => UnitTest,
    ShortSuspendsAreForgotten: R82 = "suspends that are each too short to be noticed do not add up" => UnitTest,
    GrantAfterDeadline: R4 = "a lock is granted after its deadline" => Deadline,
    SplitIsDenial: R32 = "a contender that has a vote gives up" => Available,
    TooSlowIsTrying: R35a = "a waiter whose lock came too late counts as trying still" => Served,
    SleepAfterHandOff: R35a = "after a hand-off the next waiter is not woken" => Served,
    NoWakeOnRelease: R35a = "a release wakes no waiter of its own process" => Served,
    LeaveInSilence: R35a = "a waiter that leaves does not wake the next one" => Served,
    NoPromotion: R35a = "when the first waiter leaves, no other one takes its place" => Served,
    HandOffBesideTry: R35a = "a lock is handed off to a waiter that makes a try itself" => InTurn,
    WaitForQuorum: R34b = "a notification from a minority is not followed" => Served,
    ExtensionFromAnswer: R10 = "an extension counts from its answer" => OneHolder,
    SecondRoundCounts: R21 = "the largest number of a second round is a fencing token" => FenceGrows,
    DeferOnce: R6b = "a release that a server could not carry out twice is dropped" => NothingLeft,
    ForgottenIsLoaded: R46 = "a script counts as loaded although its server has forgotten it" => NothingLeft,
    ReleaseWhereConnected: R6 = "a lock is not released on nodes that are away" => NothingLeft,
    WaitForGone: R61 = "an acquire waits until its undo is written to a node whose connection has ended" => InTime,
    DropWithReply: R8 = "a release is dropped where its reply ends the connection" => NothingLeft,
    ForgetLoss: R13 = "a lock that was lost is valid until its deadline" => LossReported,
    ExtensionShortens: R12 = "an extension by less shortens the validity" => Deadline,
    LoseWithoutToken: R35a = "a waiter is not returned to its queue where no token could be drawn for its hand-off" => Served,
    ConfirmOneTime: R6a = "the thread that confirms releases is started once, and not again after its end" => NothingLeft,
    // Found in the worlds of shards.
    RedirectWithoutAsking: R45 = "a server that a slot is migrating to is sent an operation without ASKING" => Available,
    RedirectKeepsToken: R2 = "an acquire is sent on with its token while other nodes undo it" => TokenOnce,
    UnclearIsElsewhere: R5 = "an acquire is sent on, with its token, after an answer that leaves open whether it was carried out" => TokenOnce,
    EndlessRedirects: R45 = "an operation is sent on for as long as servers name others" => InTime,
    TornIsFinal: R45 = "an operation whose keys are on two servers is not sent again with the lock's key alone" => Available,
    MovedIsForgotten: R64 = "the server that a slot has moved to is not remembered" => UnitTest,
    GivenUpIsHeeded: R45 = "a release that a node redirects once its operation has given the node up is not sent on" => UnitTest,
    MovedForEver: R64 = "the server that a slot has moved to is remembered for ever" => Available,
    OwedOnce: R45 = "a release that follows its key is sent on once" => NothingLeft,
    ReleaseAtOldOwner: R45 = "a release that no call waits for does not follow its key" => NothingLeft,
    // Found by the tests of `cluster_map`, `redirect`, `lane_choice`, `core` and `known_server`.
    ReleaseWhereCallBegan: R65 = "a lock is released only at the servers that had its slot when its call began" => UnitTest,
    ReleaseBesideAcquire: R65 = "a lock is not released behind its acquire where that went over another connection than its call's" => UnitTest,
    LaneKnowsNoServer: R66 = "a new lane's connection begins without what other lanes have learnt of the server" => UnitTest,
    LaneReadsAlone: R66 = "a lane that was idle measures a clock from its own last reading" => UnitTest,
    RecordEndsWithLane: R66 = "what a lane has learnt of a server ends with it" => UnitTest,
    NamedForEver: R43 = "a server that the slot's master has named is believed for ever" => UnitTest,
    RedirectIsFirstTry: R45 = "a server that does not have a lock, the end of which was carried out before it was sent there, has lost it" => SoundAnswer,
    MovedLaneIsKept: R45 = "operations stay at a server that named another one as the owner of their slot" => Available,
    LedBySlotBefore: R45 = "a lane that leaves a server is led by the slot that had led it there" => UnitTest,
    SitOutWithoutKeys: R45 = "a server that sits out is kept although another one has its keys" => UnitTest,
    NamedIsAnyServer: R45a = "an operation is sent to another server than the one that a redirect named for it" => UnitTest,
    MovedBeatsMap: R64 = "a report that a slot has moved counts for more than a later map that names a third server" => UnitTest,
    SilenceConfirmsInACluster: R43 = "a master of a Cluster goes on where no other server answers" => OneHolder,
    FewMastersConfirm: R43 = "a master of a Cluster goes on where it and those that name it are few of the masters" => UnitTest,
    // Found only where sentinels name the master.
    UnaskedIsSilent: R43 = "a server that was not asked where the master is counts as one that does not answer" => Available,
    RefusalIsNoAnswer: R43 = "a server that may name another master does not count where others name one" => OneHolder,
    MinorityNames: R43 = "a master is believed that few name" => OneHolder,
    AnswerIsNew: R43 = "an answer is as old as its arrival, and not as its question" => OneHolder,
    LateIsAsked: R43 = "a server that a thread turns to too late counts as asked" => OneHolder,
    SlowIsSilent: R43 = "a server that has not answered yet counts as one that cannot be reached" => OneHolder,
    ConfirmUnanswered: R43 = "an address is confirmed by answers that do not decide it" => OneHolder,
    ConfirmedForLong: R43 = "an address that was confirmed once counts for long" => OneHolder,
    UnconfirmedGrants: R43 = "an acquire is sent to an address that nothing has confirmed lately" => OneHolder,
    UnconfirmedExtends: R43 = "an extension is sent to an address that nothing has confirmed lately" => OneHolder,
    // Found by the tests of `master_answers`, `directory_questions`, `found_master`, `cluster_answers`, `cluster_map`, `server_names` and `node_id`: the margin has room for what they add.
    NewestCounts: R43 = "several answers together are as old as the newest" => UnitTest,
    JoinedIsNew: R43 = "an answer to another thread's question is as old as the caller" => UnitTest,
    FewOpen: R43 = "a master that few name counts at once" => UnitTest,
    NameOfRedirect: R43 = "an operation that is sent on names its server as the redirect does, though maps name it otherwise" => Available,
    NamesAreServers: R43 = "a server of a Cluster that its maps name differently counts as two" => UnitTest,
    TwoClustersAreOne: R43 = "given servers of two Clusters count as those of one" => UnitTest,
    AnyIdConfirms: R43 = "a master of a Cluster is confirmed by a server that means another one at its address" => UnitTest,
    NewcomerIsAnyServer: R43 = "a server in no Cluster counts as one of a Cluster whose maps have no ID for its address" => UnitTest,
    AnyServerImports: R43 = "a server in no Cluster counts as one that slots migrate to" => UnitTest,
    IdOfTheBeginningCounts: R43 = "a connection to a server of a Cluster stays although the known map has another ID for its address" => UnitTest,
    AnyServerIsMeant: R43 = "a server that names itself by another ID than its Cluster does counts as the one that is meant" => UnitTest,
    NameIsOfTwo: R43 = "a name that maps give to two servers of a Cluster makes one of them" => UnitTest,
    TwoOfOneName: R43 = "two servers of one map are given one name" => UnitTest,
    LostSlotIsBack: R45 = "a server that has lost a slot has it again by the map of one that has not learnt it yet" => UnitTest,
    AskedAboutItself: R43 = "a master of a Cluster is asked whether it still is one" => UnitTest,
    NeighboursAreAsked: R43 = "servers at the host of a Cluster's master are asked about it although there are others" => UnitTest,
    RestIsNotAsked: R43 = "the first servers of a Cluster that are asked have to decide where the master is" => UnitTest,
    FewGiveOtherSlots: R43 = "a master of a Cluster that has lost its slot is confirmed by another one that few give it" => UnitTest,
    SampleConfirmsForLong: R43 = "three servers of a large Cluster confirm a master that was confirmed long ago" => UnitTest,
    // Found only if a server reads one write in a turn, which it does over TLS.
    PingCountsManyWrites: R8 = "over TLS, a ping stands for many writes" => TokenOnce,
}

#[cfg(test)]
thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks a rule in this thread, or none.
#[cfg(test)]
pub(crate) fn set_mutant(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken.
#[cfg(test)]
pub(crate) fn mutant(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

#[cfg(not(test))]
pub(crate) const fn mutant(_: Mutant) -> bool {
    false
}
