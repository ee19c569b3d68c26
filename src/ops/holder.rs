use std::fmt;
use std::time::SystemTime;

use crate::values::label::Label;
use crate::values::lock_value::{self, Since, ValueParts, ValueRole};
use crate::values::token::{Fingerprint, Token};

/// The holder of a lock, of a permit or of a read lock, without the token that could release it. `Display` is the
/// fingerprint, the label if there is one, and the holder's part if that is not the whole lock:
/// `3fa9c1d2 (web-3:4711)`, `3fa9c1d2 (web-3:4711) in slot 2`, `3fa9c1d2 (web-3:4711) reading`. Behind that is `, left` if
/// the holder [has left it](Holder::has_left).
#[derive(Clone)]
pub struct Holder {
    token: Token,
    since: Since,
    label: Option<Label>,
    role: ValueRole,
}

impl Holder {
    /// The holder in a lock's value, or in its first bytes if the value has `length`. `None`: other data.
    pub(crate) fn parse(value: &[u8], length: usize) -> Option<Holder> {
        let parts = lock_value::parse(value, length)?;
        Some(Holder::new(ValueRole::Lock, parts))
    }

    /// The holder in a member of a lock's sorted set.
    pub(crate) fn of_member(member: &[u8]) -> Option<Holder> {
        let (role, parts) = lock_value::parse_member(member)?;
        Some(Holder::new(role, parts))
    }

    fn new(role: ValueRole, parts: ValueParts) -> Holder {
        let ValueParts {
            token,
            since,
            label,
        } = parts;
        Holder {
            token,
            since,
            label,
            role,
        }
    }

    /// Takes over what another node has for the same holder. A process that goes on with another's lock does not know the
    /// time, and sets the lock without it on a node that has lost it; and a holder may have left the lock while a node was
    /// away.
    pub(crate) fn complete(&mut self, other: &Holder) {
        self.since = self.since.and(other.since);
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// The label as it was read: if no scripts are run, servers compare the whole value.
    pub(crate) fn own_label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    pub(crate) fn role(&self) -> ValueRole {
        self.role
    }

    /// The fingerprint of the holder's token. The program that holds the lock gets the same from
    /// [`Token::fingerprint`](crate::Token::fingerprint).
    pub fn fingerprint(&self) -> Fingerprint {
        self.token.fingerprint()
    }

    /// The [label](crate::Options::label), if the holder gave its lock one.
    pub fn label(&self) -> Option<&str> {
        self.label.as_ref().map(Label::as_str)
    }

    /// When the lock was acquired, by the clock of the machine that its holder runs on, to the second. `None`: the lock
    /// was acquired by a program that does not note the time, or whose clock was not set; or the nodes [run no
    /// scripts](crate::guide::operations#services-that-lack-commands).
    pub fn since(&self) -> Option<SystemTime> {
        self.since.time()
    }

    /// Whether the holder has given the lock up, and left it for a time, by [`leak_for`](crate::Lock::leak_for) or the
    /// command's `--at-least`. Then nothing is under way: the lock ends when its time is over. Nodes that [run no
    /// scripts](crate::guide::operations#services-that-lack-commands) do not note it.
    pub fn has_left(&self) -> bool {
        self.since.is_given_up()
    }

    /// The permit of a [semaphore](crate::Redlock::semaphore) that it has, as in [`Lock::slot`](crate::Lock::slot).
    /// `None`: the lock is no semaphore.
    pub fn slot(&self) -> Option<u32> {
        match self.role {
            ValueRole::Permit(slot) => Some(slot.into()),
            ValueRole::Lock | ValueRole::Reader => None,
        }
    }

    /// The holder without its status, which can change.
    pub(crate) fn identity(&self) -> HolderIdentity<'_> {
        HolderIdentity(self)
    }

    /// Whether a text is of this holder: by fingerprint and role. Its label on some nodes may differ.
    #[cfg(any(feature = "capi", test))]
    pub(crate) fn is_named(&self, text: &HolderText<'_>) -> bool {
        self.has_fingerprint_of(text) && self.role == text.role
    }

    /// Whether a text has this holder's fingerprint. With another role it is no text of any holder, since the role of a
    /// token never changes: it may have been cut.
    #[cfg(any(feature = "capi", test))]
    pub(crate) fn has_fingerprint_of(&self, text: &HolderText<'_>) -> bool {
        self.fingerprint().to_string() == text.fingerprint
    }

    /// Whether it has a [read lock](crate::Redlock::read_lock), beside which there may be others.
    pub fn is_reader(&self) -> bool {
        self.role == ValueRole::Reader
    }
}

/// Holders are equal if they have the same token and the same role, with the slot of a semaphore.
impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        (self.role, &self.token) == (other.role, &other.token)
    }
}

impl Eq for Holder {}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.identity())?;
        match self.has_left() {
            true => f.write_str(LEFT),
            false => Ok(()),
        }
    }
}

/// The text of a holder, as `Display` writes it.
#[cfg(any(feature = "capi", test))]
#[derive(Debug, PartialEq)]
pub(crate) struct HolderText<'a> {
    fingerprint: &'a str,
    role: ValueRole,
}

/// Why a text is not that of one holder.
#[cfg(any(feature = "capi", test))]
#[derive(Debug, PartialEq)]
pub(crate) enum BadHolderText {
    /// Several lines, each with a holder.
    Several(usize),
    NoHolder,
}

#[cfg(any(feature = "capi", test))]
impl fmt::Display for BadHolderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHolderText::Several(count) => {
                write!(f, "the text names {count} holders: give one line of it")
            }
            // The text itself may be anything, also a secret.
            BadHolderText::NoHolder => f.write_str(
                "the text names no holder: give a line as inspect shows it, such as \"1a2b3c4d (web-2:4711)\"",
            ),
        }
    }
}

#[cfg(any(feature = "capi", test))]
impl<'a> HolderText<'a> {
    /// The holder that a text names, whatever its label and status are. The end of its line may be with it.
    pub(crate) fn parse(text: &'a str) -> Result<HolderText<'a>, BadHolderText> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let of_lines: Option<Vec<_>> = text.split('\n').map(HolderText::of_line).collect();
        let mut holders = of_lines.ok_or(BadHolderText::NoHolder)?;
        match holders.len() {
            1 => holders.pop().ok_or(BadHolderText::NoHolder),
            several => Err(BadHolderText::Several(several)),
        }
    }

    fn of_line(line: &'a str) -> Option<HolderText<'a>> {
        let line = line.strip_suffix(LEFT).unwrap_or(line);
        let (fingerprint, rest) = line.split_at_checked(FINGERPRINT)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if !fingerprint.bytes().all(is_digit) {
            return None;
        }
        // The label may have parentheses, and the role behind it has none.
        let behind = match rest.strip_prefix(" (") {
            Some(label) => label.rsplit_once(')')?.1,
            None => rest,
        };
        let role = match behind {
            "" => ValueRole::Lock,
            " reading" => ValueRole::Reader,
            _ => ValueRole::Permit(behind.strip_prefix(" in slot ")?.parse().ok()?),
        };
        Some(HolderText { fingerprint, role })
    }
}

/// The digits of a fingerprint.
#[cfg(any(feature = "capi", test))]
const FINGERPRINT: usize = 8;

/// The status behind a holder that has left its lock.
const LEFT: &str = ", left";

/// `Display` is that of the holder, without its status.
pub(crate) struct HolderIdentity<'a>(&'a Holder);

impl fmt::Display for HolderIdentity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HolderIdentity(holder) = self;
        write!(f, "{}", holder.fingerprint())?;
        if let Some(label) = &holder.label {
            write!(f, " ({})", label.as_str())?;
        }
        write!(f, "{}", RoleText(holder.role))
    }
}

/// The holder's part, if that is not the whole lock.
struct RoleText(ValueRole);

impl fmt::Display for RoleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ValueRole::Lock => Ok(()),
            ValueRole::Reader => f.write_str(" reading"),
            ValueRole::Permit(slot) => write!(f, " in slot {slot}"),
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({self})")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::values::lock_value::TOKEN;

    /// A holder whose token repeats this byte.
    pub(crate) fn holder(token: u8, role: ValueRole) -> Holder {
        Holder {
            token: Token::from_bytes([token; TOKEN]),
            since: Since::UNKNOWN,
            label: None,
            role,
        }
    }

    #[test]
    fn a_holder_is_found_by_its_text_whatever_its_label_and_status_are() {
        for role in [ValueRole::Lock, ValueRole::Reader, ValueRole::Permit(2)] {
            let mut shown = holder(7, role);
            for label in [None, Label::new("web-3"), Label::new("a) reading (b")] {
                shown.label = label;
                let line = shown.to_string();
                for text in [line.clone(), format!("{line}, left"), format!("{line}\n")] {
                    let parsed = HolderText::parse(&text).unwrap();
                    assert!(holder(7, role).is_named(&parsed), "{text}");
                    assert!(!holder(8, role).is_named(&parsed), "{text}");
                    for other in [
                        ValueRole::Lock,
                        ValueRole::Reader,
                        ValueRole::Permit(2),
                        ValueRole::Permit(22),
                    ] {
                        assert!(holder(7, other).has_fingerprint_of(&parsed), "{text}");
                        assert!(!holder(8, other).has_fingerprint_of(&parsed), "{text}");
                        let is_named = holder(7, other).is_named(&parsed);
                        assert_eq!(is_named, other == role, "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_text_of_no_holder_and_one_of_several_are_told_apart() {
        for text in [
            "",
            "\n",
            "web-3:4711",
            "0707070",
            "0707070é",
            "0707070X",
            "07070707 x",
            "0707070707",
            "07070707 (",
            "07070707 (web-3",
            "07070707 in slot",
            "07070707 in slot x",
            "07070707, left, left",
            "07070707\n\n",
            // The last line was cut.
            "07070707 reading\n0808",
        ] {
            let parsed = HolderText::parse(text);
            assert_eq!(parsed, Err(BadHolderText::NoHolder), "{text:?}");
        }
        for text in [
            "07070707 reading\n08080808 reading",
            "07070707 (web-1) reading\n08080808 (web-2) reading",
            "07070707 in slot 0\n08080808 in slot 1\n",
        ] {
            let parsed = HolderText::parse(text);
            assert_eq!(parsed, Err(BadHolderText::Several(2)), "{text:?}");
        }
    }

    #[test]
    fn a_holder_is_shown_with_its_role() {
        for (role, text) in [
            (ValueRole::Lock, "07070707"),
            (ValueRole::Reader, "07070707 reading"),
            (ValueRole::Permit(2), "07070707 in slot 2"),
        ] {
            assert_eq!(holder(7, role).to_string(), text);
        }
        assert_eq!(holder(7, ValueRole::Permit(2)).slot(), Some(2));
        assert!(holder(7, ValueRole::Reader).is_reader());
        // Another slot is another holder.
        assert_ne!(
            holder(7, ValueRole::Permit(2)),
            holder(7, ValueRole::Permit(1))
        );
        assert_ne!(
            holder(7, ValueRole::Permit(2)),
            holder(8, ValueRole::Permit(2))
        );
    }
}
