//! What nodes do: they carry out requests, and restart.

use super::{
    Bits, EXTENDED, Extension, GONE, GRANTED, Lease, Node, OVER, Pairs, Phase, Refill, Restart,
    SILENT, Skip, State, Steps, UNDER_WAY, Wrong,
};

impl Lease {
    /// What can happen to the messages of one attempt to one node.
    pub(super) fn node_steps(
        &self,
        state: &State,
        at: usize,
        attempt: usize,
        steps: &mut Steps<State>,
    ) {
        let node = &state.nodes[at];
        let set = node.set.get(attempt) == UNDER_WAY;
        let extension = node.extension.get(attempt) == UNDER_WAY;
        let earlier = node.earlier.has(attempt);
        let refill = node.refill.has(attempt);
        // Whether what went before it on the same connection has arrived.
        let next = |before: bool| !self.ordered || !before;
        if set {
            self.set(state, at, attempt, steps);
        }
        if earlier && next(set || refill) {
            self.earlier_extension(state, at, attempt, steps);
        }
        if extension && next(set || refill || earlier) {
            self.extension(state, at, attempt, steps);
        }
        if refill && next(set) {
            self.refill(state, at, attempt, steps);
        }
        self.send_refill(state, at, attempt, steps);
        if node.release.has(attempt) && next(set || extension || refill || earlier) {
            self.release(state, at, attempt, steps);
        }
    }

    fn set(&self, state: &State, at: usize, attempt: usize, steps: &mut Steps<State>) {
        let client = self.client_of(attempt);
        let acquiring =
            self.is_current(state, attempt) && state.clients[client].phase == Phase::Acquiring;
        let mut new = *state;
        let node = &mut new.nodes[at];
        let granted = node.key == 0;
        if granted {
            node.key = self.token(attempt);
            node.ttl = self.ttl_of(client) - self.node_fast;
        } else if self.skip != Skip::None && acquiring {
            node.denied.add(attempt);
        }
        let counts = granted && acquiring;
        node.set.put(attempt, if counts { GRANTED } else { OVER });
        self.add(steps, new, || {
            let answer = if granted { "granted" } else { "denied" };
            format!("node {at}: SET of {}: {answer}", self.name(attempt))
        });
        if self.ordered {
            let mut new = *state;
            new.nodes[at].set.put(attempt, OVER);
            self.add(steps, new, || {
                format!("SET of {} to node {at} is lost", self.name(attempt))
            });
        }
    }

    /// What an extension does to a key. `SILENT`: another one's key.
    fn extend(&self, node: &mut Node, attempt: usize) -> u8 {
        let ttl = self.extension_ttl_of(self.client_of(attempt)) - self.node_fast;
        if node.key == self.token(attempt) {
            node.ttl = if self.never_shortens {
                node.ttl.max(ttl)
            } else {
                ttl
            };
            return EXTENDED;
        }
        if node.key != 0 {
            return SILENT;
        }
        if self.extension == Extension::HeldOnly {
            return GONE;
        }
        (node.key, node.ttl) = (self.token(attempt), ttl);
        if self.extension == Extension::SetCounts {
            EXTENDED
        } else {
            SILENT
        }
    }

    fn earlier_extension(
        &self,
        state: &State,
        at: usize,
        attempt: usize,
        steps: &mut Steps<State>,
    ) {
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.earlier.remove(attempt);
        self.extend(node, attempt);
        self.add(steps, new, || {
            format!("node {at}: earlier extension of {}", self.name(attempt))
        });
        if self.ordered && self.drops_all {
            let mut new = *state;
            new.nodes[at].earlier.remove(attempt);
            self.add(steps, new, || self.lost("earlier extension", attempt, at));
        }
    }

    fn extension(&self, state: &State, at: usize, attempt: usize, steps: &mut Steps<State>) {
        let client = state.clients[self.client_of(attempt)];
        let held = self.is_held(state, attempt);
        let mut new = *state;
        let node = &mut new.nodes[at];
        let answer = self.extend(node, attempt);
        let late = held && !client.extending && client.confirmed;
        let may_refill = self.refill == Refill::AfterQuorum
            && !self.refill_with_verdict
            && (!self.refill_seen_only || node.granted.has(attempt));
        if answer == GONE && late && may_refill {
            node.to_refill.add(attempt);
        }
        let awaited = held && client.extending;
        node.extension
            .put(attempt, if awaited { answer } else { SILENT });
        self.add(steps, new, || {
            let answer = match answer {
                EXTENDED => "extended",
                GONE => "gone",
                _ => "no vote",
            };
            format!("node {at}: extension of {}: {answer}", self.name(attempt))
        });
        if self.ordered && self.drops_all {
            let mut new = *state;
            new.nodes[at].extension.put(attempt, SILENT);
            self.add(steps, new, || self.lost("extension", attempt, at));
        }
    }

    fn refill(&self, state: &State, at: usize, attempt: usize, steps: &mut Steps<State>) {
        let client = self.client_of(attempt);
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.refill.remove(attempt);
        let free = node.key == 0;
        if free {
            node.key = self.token(attempt);
            node.ttl = if self.refill_for_rest {
                node.refill_ttl
            } else {
                self.extension_ttl_of(client) - self.node_fast
            };
            let awaited = self.is_held(state, attempt) && state.clients[client].extending;
            if awaited && self.refill_counts {
                node.extension.put(attempt, EXTENDED);
            }
        }
        self.add(steps, new, || {
            let answer = if free { "set" } else { "there is a key" };
            format!("node {at}: refill of {}: {answer}", self.name(attempt))
        });
        if self.ordered && self.drops_all {
            let mut new = *state;
            new.nodes[at].refill.remove(attempt);
            self.add(steps, new, || self.lost("refill", attempt, at));
        }
    }

    /// The client sends it.
    fn send_refill(&self, state: &State, at: usize, attempt: usize, steps: &mut Steps<State>) {
        let client = state.clients[self.client_of(attempt)];
        let current = self.is_current(state, attempt);
        let node = &state.nodes[at];
        let at_once = current
            && client.extending
            && node.extension.get(attempt) == GONE
            && self.refill == Refill::AtOnce;
        let due = node.to_refill.has(attempt) || at_once;
        let valid = !self.refill_for_rest || client.belief > 0;
        let unreleased = current || !node.release.has(attempt);
        if !due || !valid || !unreleased || self.away && self.is_in_quarantine(node) {
            return;
        }
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.to_refill.remove(attempt);
        if at_once {
            node.extension.put(attempt, SILENT);
        }
        node.refill.add(attempt);
        if self.skip == Skip::DeniedNotRefilled {
            node.denied.remove(attempt);
        }
        if self.refill_for_rest {
            node.refill_ttl = client.belief;
        }
        self.add(steps, new, || {
            format!("a refill of {} is sent to node {at}", self.name(attempt))
        });
    }

    fn release(&self, state: &State, at: usize, attempt: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.release.remove(attempt);
        let deletes = node.key == self.token(attempt);
        if deletes {
            if self.old_data {
                (node.old_key, node.old_ttl) = (node.key, node.ttl);
            }
            (node.key, node.ttl) = (0, 0);
        }
        self.add(steps, new, || {
            let answer = if deletes { "deleted" } else { "not there" };
            format!("node {at}: release of {}: {answer}", self.name(attempt))
        });
    }

    fn lost(&self, what: &str, attempt: usize, at: usize) -> String {
        format!("{what} of {} to node {at} is lost", self.name(attempt))
    }

    pub(super) fn restart_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        if state.restarts >= self.restarts || !self.may_restart(state, at) {
            return;
        }
        let before = state.nodes[at];
        let mut new = *state;
        new.restarts += 1;
        new.since = 0;
        let node = &mut new.nodes[at];
        if self.rolling {
            node.rolled = true;
            node.to_refill = Bits::default();
        }
        (node.key, node.ttl) = (0, 0);
        if !self.unseen_loss {
            node.uptime = 0;
            if self.restart_breaks {
                self.lose_requests(node);
            }
        }
        self.add(steps, new, || format!("node {at} restarts empty"));
        if self.old_data {
            let keys = [(before.key, before.ttl), (before.old_key, before.old_ttl)];
            for (key, ttl) in keys.into_iter().filter(|(key, _)| *key != 0) {
                let mut new = new;
                (new.nodes[at].key, new.nodes[at].ttl) = (key, ttl);
                self.add(steps, new, || {
                    let whose = self.name(usize::from(key) - 1);
                    format!("node {at} restarts with the key of {whose}")
                });
            }
        }
    }

    fn lose_requests(&self, node: &mut Node) {
        for attempt in 0..self.all_attempts() {
            if node.set.get(attempt) == UNDER_WAY {
                node.set.put(attempt, OVER);
            }
            if node.extension.get(attempt) == UNDER_WAY {
                let answer = if self.refill == Refill::Never {
                    GONE
                } else {
                    SILENT
                };
                node.extension.put(attempt, answer);
            }
        }
        node.refill = Bits::default();
        node.earlier = Bits::default();
        node.release = Bits::default();
    }

    fn may_restart(&self, state: &State, at: usize) -> bool {
        if state.since < self.gap || state.nodes[at].rolled {
            return false;
        }
        let nodes = &state.nodes[..self.nodes];
        // Others with the key of that one.
        let others = |of: usize| {
            let holds = |other: &usize| *other != at && nodes[*other].key == nodes[of].key;
            (0..self.nodes).filter(holds).count()
        };
        let held = |of: &usize| nodes[*of].key != 0;
        match self.restart {
            Restart::Anytime => true,
            Restart::AllHoldOne => held(&at) && others(at) == self.nodes - 1,
            Restart::OthersHoldOne => (0..self.nodes)
                .filter(held)
                .any(|of| others(of) >= self.quorum),
            Restart::Calm => {
                let all = held(&at) && others(at) == self.nodes - 1;
                all && self.calm(state, nodes[at].key, |client, node| node.ttl >= client)
            }
            Restart::OthersCalm => (0..self.nodes)
                .filter(|of| *of != at && held(of) && others(*of) >= self.quorum)
                .any(|of| {
                    let key = nodes[of].key;
                    let belief = state.clients[self.client_of(usize::from(key) - 1)].belief;
                    let long_enough = |other: &usize| {
                        *other != at && nodes[*other].key == key && nodes[*other].ttl >= belief
                    };
                    self.calm(state, key, |_, _| true)
                        && (0..self.nodes).filter(long_enough).count() >= self.quorum
                }),
        }
    }

    /// It is a holder's key, with nothing of that attempt under way; and each node is all right.
    fn calm(&self, state: &State, key: u8, right: impl Fn(u8, &Node) -> bool) -> bool {
        let attempt = usize::from(key) - 1;
        let client = &state.clients[self.client_of(attempt)];
        let quiet = |node: &Node| {
            let messages = Bits(node.earlier.0 | node.refill.0 | node.to_refill.0);
            let under_way = |pairs: Pairs| pairs.get(attempt) == UNDER_WAY;
            !under_way(node.set) && !under_way(node.extension) && !messages.has(attempt)
        };
        self.is_held(state, attempt)
            && !client.extending
            && state.nodes[..self.nodes]
                .iter()
                .all(|node| quiet(node) && right(client.belief, node))
    }

    pub(super) fn tick(&self, state: &State, steps: &mut Steps<State>) {
        if self.rolling && !self.is_quiet(state) {
            return;
        }
        let mut new = *state;
        if new.since < self.gap {
            new.since += 1;
        }
        new.clients[0].done = false;
        for node in &mut new.nodes[..self.nodes] {
            count_down(&mut node.ttl, &mut node.key);
            count_down(&mut node.old_ttl, &mut node.old_key);
            if node.uptime < self.quarantine {
                node.uptime += 1;
            }
        }
        let longest = self.ttl.max(self.extension_ttl).max(self.ttl_others);
        let most = longest + self.client_slow - self.drift.min(self.client_slow);
        for client in &mut new.clients[..self.clients] {
            if client.phase == Phase::Acquiring && client.elapsed < most {
                client.elapsed += 1;
            }
            if client.extending && client.extension_elapsed < most {
                client.extension_elapsed += 1;
            }
            client.belief = client.belief.saturating_sub(1);
        }
        if self.rolling && new.clients[0].belief == 0 {
            new.wrong = Wrong::Lost;
        }
        if new != *state {
            self.add(steps, new, || "a tick".into());
        }
    }

    /// In a rolling restart: everything of this tick has happened.
    fn is_quiet(&self, state: &State) -> bool {
        let quiet = |node: &Node| {
            let messages = node.release.0 | node.refill.0 | node.earlier.0 | node.to_refill.0;
            let arrived = |attempt: usize| {
                node.set.get(attempt) != UNDER_WAY && node.extension.get(attempt) != UNDER_WAY
            };
            messages == 0 && (0..self.all_attempts()).all(arrived)
        };
        let [keeper, others @ ..] = &state.clients;
        let decided = others.iter().all(|client| client.phase != Phase::Acquiring);
        keeper.done && !keeper.extending && decided && state.nodes[..self.nodes].iter().all(quiet)
    }
}

fn count_down(ttl: &mut u8, key: &mut u8) {
    if *ttl > 0 {
        *ttl -= 1;
        if *ttl == 0 {
            *key = 0;
        }
    }
}
