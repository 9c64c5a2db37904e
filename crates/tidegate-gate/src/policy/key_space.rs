//! The first bytes of keys that belong to no policy.
//!
//! A policy's key begins with the length of the policy's name, which is never zero. All other keys begin with a zero
//! and a letter from this list, so that keys of different kinds are never equal: a caller that chooses the rest of a
//! key cannot choose its kind.

/// The mark that half of a ticket has been settled, followed by the half and the ticket's id.
#[cfg(any(test, feature = "ticket"))]
pub(crate) const TICKET_MARK: [u8; 2] = [0, b't'];

/// A limit that a caller sends with its check, followed by the caller's own key.
pub const CALLER_LIMIT: [u8; 2] = [0, b'c'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_of_key_begins_as_another() {
        assert_ne!(TICKET_MARK, CALLER_LIMIT);
        assert!([TICKET_MARK, CALLER_LIMIT].iter().all(|kind| kind[0] == 0), "no policy's");
    }
}
