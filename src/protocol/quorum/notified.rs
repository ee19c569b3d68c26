//! Releases that notified another process, as was learnt when no operation waited for them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::protocol::node::debt::Debt;

/// The maximum number of resources that are remembered.
const MAX_RESOURCES: usize = 64;

/// The resources of those releases, the oldest first. The next acquire of a resource takes it out, and reports it.
#[derive(Default)]
pub(crate) struct NotifiedElsewhere(VecDeque<Arc<[u8]>>);

impl NotifiedElsewhere {
    pub(crate) fn add(&mut self, release: Option<&Debt>) {
        let resource = release.map(|release| release.key.resource.clone());
        let new = resource.filter(|resource| !self.0.contains(resource));
        self.0.extend(new);
        if self.0.len() > MAX_RESOURCES {
            self.0.pop_front();
        }
    }

    pub(crate) fn take(&mut self, resource: &[u8]) -> bool {
        let at = self.0.iter().position(|known| **known == *resource);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::key;

    #[test]
    fn each_resource_is_reported_once_and_the_oldest_of_too_many_is_forgotten() {
        let mut notified = NotifiedElsewhere::default();
        let release = |name: &str| Some(Debt::release(key(name.as_bytes())));
        notified.add(None);
        notified.add(release("a").as_ref());
        notified.add(release("a").as_ref());
        assert!(!notified.take(b"b"));
        assert!(notified.take(b"a"));
        assert!(!notified.take(b"a"));
        let names: Vec<String> = (0..=MAX_RESOURCES).map(|at| format!("{at}")).collect();
        names
            .iter()
            .for_each(|name| notified.add(release(name).as_ref()));
        let kept = names.iter().filter(|name| notified.take(name.as_bytes()));
        assert_eq!(
            kept.collect::<Vec<_>>(),
            names[1..].iter().collect::<Vec<_>>()
        );
    }
}
