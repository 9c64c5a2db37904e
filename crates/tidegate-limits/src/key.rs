//! Types that may be keys: text, bytes, addresses, numbers, header values, and tuples of these.
//!
//! A limiter hashes a key's bytes and does not keep them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

/// The bytes of a tuple that fit without allocation: enough for an address, a user's id and a path of usual length.
const ON_STACK: usize = 128;

/// Identifies whose capacity is charged: the keys of [`KeyedLimiter`](crate::KeyedLimiter).
///
/// | key | its bytes |
/// |---|---|
/// | text, bytes, arrays of bytes | as they are |
/// | `Ipv4Addr`, `Ipv6Addr`, `IpAddr` | 4 or 16; an IPv4-mapped IPv6 address (`::ffff:203.0.113.9`) has the 4 bytes of the IPv4 address |
/// | `char` | the character as text: `'a'` and `"a"` are one key |
/// | `u8` to `u64`, `i8` to `i64`, `usize`, `isize` | 8, most significant first: `7_u32` and `7_u64` are one key |
/// | `u128`, `i128` | 16, most significant first |
/// | `NonZero` of these numbers | those of the number |
/// | `bytes::Bytes`, `http::HeaderValue`, with the feature `http` | as they are; lower-case the values of case-insensitive headers first |
/// | tuples of two to six of these | for each part its length and its bytes, so `("a", "bc")` and `("ab", "c")` are two keys |
///
/// References, `Box`, `Arc`, `Rc` and `Cow` of a key are that key. A tuple of up to 128 bytes is assembled without
/// allocation.
///
/// Two keys of different types may have the same bytes (`[203, 0, 113, 9]` equals that address, and `-1_i64` equals
/// `u64::MAX`), so use keys of one type per limiter. A client with a whole IPv6 network has 2⁶⁴ addresses to come from:
/// `keyed_network` cuts an address to the network. A `SocketAddr` is not a key, since
/// its port changes with each connection: use its `ip()`. For a `Uuid` of the `uuid` crate use `as_bytes()`, which does
/// not depend on how it is written.
///
/// # Examples
/// ```
/// use std::net::IpAddr;
/// use tidegate::limiter::Key;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::new(Quota::per_minute(1), 1000)?;
/// let client: IpAddr = "203.0.113.9".parse().expect("an address");
/// assert!(limiter.allow(client).is_allowed());
/// assert!(limiter.allow((client, "/login")).is_allowed());
/// assert!(limiter.allow(42_u64).is_allowed());
///
/// // A custom key type:
/// struct UserId(u64);
/// impl Key for UserId {
///     fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
///         self.0.with_bytes(then)
///     }
/// }
/// assert!(!limiter.allow(UserId(42)).is_allowed(), "the same bytes as 42");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "not a key",
    note = "keys are text, bytes, IP addresses, whole numbers, and tuples of these; of a socket address take `.ip()`, of a UUID `.as_bytes()`",
    note = "of another type take its bytes or its text, or implement `tidegate::limiter::Key`"
)]
pub trait Key {
    /// Calls `then` with the key's bytes. It is called once or twice per operation, and has to pass the same bytes each
    /// time. Equal keys must have equal bytes, and different keys different ones.
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R;
}

impl Key for [u8] {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self)
    }
}

impl Key for str {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self.as_bytes())
    }
}

impl<const LENGTH: usize> Key for [u8; LENGTH] {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self)
    }
}

impl Key for Vec<u8> {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self)
    }
}

impl Key for String {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self.as_bytes())
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<K: Key + ?Sized> Key for $pointer {
            #[inline]
            fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_bytes(then)
            }
        }
    )*};
}

pointers!(&K, &mut K, Box<K>, Arc<K>, Rc<K>);

impl<K: Key + ToOwned + ?Sized> Key for Cow<'_, K> {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_bytes(then)
    }
}

impl Key for Ipv4Addr {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(&self.octets())
    }
}

impl Key for Ipv6Addr {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        match self.to_ipv4_mapped() {
            Some(address) => then(&address.octets()),
            None => then(&self.octets()),
        }
    }
}

impl Key for IpAddr {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::V4(address) => address.with_bytes(then),
            Self::V6(address) => address.with_bytes(then),
        }
    }
}

macro_rules! numbers {
    ($($number:ty => $wide:ty),*) => {$(
        impl Key for $number {
            #[inline]
            fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
                #[allow(clippy::cast_lossless, reason = "one form for numbers that convert and for those of the platform's width")]
                then(&(*self as $wide).to_be_bytes())
            }
        }
    )*};
}

numbers!(u8 => u64, u16 => u64, u32 => u64, u64 => u64, usize => u64, u128 => u128);
numbers!(i8 => i64, i16 => i64, i32 => i64, i64 => i64, isize => i64, i128 => i128);

macro_rules! non_zero_numbers {
    ($($number:ty),*) => {$(
        impl Key for NonZero<$number> {
            #[inline]
            fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
                self.get().with_bytes(then)
            }
        }
    )*};
}

non_zero_numbers!(u8, u16, u32, u64, usize, u128, i8, i16, i32, i64, isize, i128);

impl Key for char {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self.encode_utf8(&mut [0; 4]).as_bytes())
    }
}

#[cfg(feature = "http")]
impl Key for bytes::Bytes {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self)
    }
}

#[cfg(feature = "http")]
impl Key for http::HeaderValue {
    #[inline]
    fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
        then(self.as_bytes())
    }
}

type Joined = SmallVec<[u8; ON_STACK]>;

/// Appends a part: its length in LEB128, then its bytes. The encoding is prefix-free, so two tuples have equal bytes
/// only if all parts are equal.
fn join(joined: &mut Joined, part: &[u8]) {
    let mut length = part.len();
    while length >= 0x80 {
        joined.push(length as u8 | 0x80);
        length >>= 7;
    }
    joined.push(length as u8);
    joined.extend_from_slice(part);
}

macro_rules! tuples {
    ($(($($part:ident),+);)*) => {$(
        impl<$($part: Key),+> Key for ($($part,)+) {
            #[inline]
            fn with_bytes<R>(&self, then: impl FnOnce(&[u8]) -> R) -> R {
                #[allow(non_snake_case, reason = "a part is named after its type")]
                let ($($part,)+) = self;
                let mut joined = Joined::new();
                $($part.with_bytes(|part| join(&mut joined, part));)+
                then(&joined)
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
    (A, B, C, D, E, F);
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(key: impl Key) -> Vec<u8> {
        key.with_bytes(<[u8]>::to_vec)
    }

    /// Text and bytes keep the bytes that they had as keys before the trait existed.
    #[test]
    fn text_and_bytes_are_as_they_are() {
        let text = String::from("ann");
        let all = [
            bytes("ann"),
            bytes(&text),
            bytes(text.as_bytes()),
            bytes(*b"ann"),
            bytes(b"ann".to_vec()),
            bytes(Cow::Borrowed("ann")),
            bytes(Arc::<str>::from("ann")),
            bytes(Box::<[u8]>::from(*b"ann")),
        ];
        assert!(all.iter().all(|bytes| bytes == b"ann"), "{all:?}");
    }

    #[test]
    fn a_character_is_the_text_of_it() {
        for one in ['a', 'ä', '€', '𝄞', '\0'] {
            assert_eq!(bytes(one), one.to_string().into_bytes());
        }
    }

    #[cfg(feature = "http")]
    #[test]
    fn what_servers_hold_is_a_key_as_it_is() {
        let value = http::HeaderValue::from_bytes(b"key \xff").unwrap();
        assert_eq!(bytes(&value), b"key \xff");
        assert_eq!(bytes(bytes::Bytes::from_static(b"ann")), b"ann");
        assert_eq!(bytes((&value, 7)), bytes((&b"key \xff"[..], 7)));
    }

    #[test]
    fn an_address_is_one_key_however_it_is_written() {
        let plain = bytes(Ipv4Addr::new(203, 0, 113, 9));
        assert_eq!(plain, [203, 0, 113, 9]);
        for text in ["203.0.113.9", "::ffff:203.0.113.9"] {
            assert_eq!(bytes(text.parse::<IpAddr>().unwrap()), plain);
        }
        assert_eq!(bytes("::203.0.113.9".parse::<IpAddr>().unwrap()).len(), 16, "that is another address");
    }

    #[test]
    fn a_number_is_one_key_whatever_its_type() {
        let seven = bytes(7_u8);
        assert_eq!(seven, 7_u64.to_be_bytes());
        for other in [bytes(7_i32), bytes(7_usize), bytes(7_i64), bytes(7_u16), bytes(7_isize)] {
            assert_eq!(other, seven);
        }
        let seven = NonZero::new(7_u32).unwrap();
        assert_eq!((bytes(seven), bytes(NonZero::<i64>::from(seven))), (bytes(7), bytes(7_i64)));
        assert_ne!(bytes(-7), bytes(7));
        assert_eq!(bytes(7_u128), 7_u128.to_be_bytes());
    }

    #[test]
    fn where_a_part_ends_makes_a_difference() {
        assert_ne!(bytes(("a", "bc")), bytes(("ab", "c")));
        assert_ne!(bytes(("", "a")), bytes(("a", "")));
        assert_ne!(bytes(("a", "b", "")), bytes(("a", "b")));
        assert_ne!(bytes((1_u64, 23_u64)), bytes((12_u64, 3_u64)));
        assert_ne!(bytes(("a", ("b", "c"))), bytes((("a", "b"), "c")));
    }

    #[test]
    fn a_usual_tuple_stays_on_the_stack() {
        let mut joined = Joined::new();
        for part in [&[0; 16][..], &[0; 8], &[0; 100]] {
            join(&mut joined, part);
        }
        assert!(!joined.spilled(), "{}", joined.len());
    }

    proptest! {
        #[test]
        fn no_tuple_begins_another(
            one in proptest::collection::vec(proptest::collection::vec(0..3_u8, 0..300), 2..=2),
            other in proptest::collection::vec(proptest::collection::vec(0..3_u8, 0..3), 2..=3),
        ) {
            let joined = |parts: &[Vec<u8>]| {
                let mut joined = Joined::new();
                parts.iter().for_each(|part| join(&mut joined, part));
                joined
            };
            let (whole, short) = (joined(&one), joined(&other[..2]));
            prop_assert_eq!(whole.starts_with(&short), one[..] == other[..2]);
            prop_assert_eq!(bytes((&one[0], &one[1])), whole.to_vec());
        }
    }
}
