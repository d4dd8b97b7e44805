//! The reader of postcard's format, for messages of strangers: a message has a depth at most, and no more items than bytes. An error names
//! the field that does not decode.

use std::fmt;

use serde::de::value::U32Deserializer;
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _,
    IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::codec::Malformed;

/// The largest depth: values within values need stack.
const DEPTH_MAX: u32 = 128;

/// Reads a message, to its last byte.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader { bytes, depth: 0 };
    let message = T::deserialize(&mut reader).map_err(|mistake| Malformed::new(*mistake.0))?;
    match reader.bytes {
        [] => Ok(message),
        _ => Err(Malformed::new("bytes follow the last field")),
    }
}

/// The bytes that are left, and the number of values around the present one.
struct Reader<'de> {
    bytes: &'de [u8],
    depth: u32,
}

/// The reason why a value does not decode, in a box: results stay small.
#[derive(Debug)]
struct Mistake(Box<Place>);

#[derive(Debug)]
struct Place {
    why: String,
    /// The innermost first.
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Field(&'static str),
    Item(usize),
}

impl serde::de::Error for Mistake {
    #[cold]
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self(Box::new(Place { why: why.to_string(), steps: Vec::new() }))
    }
}

impl std::error::Error for Mistake {}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().rev().enumerate() {
            match step {
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(item) => write!(f, "[{item}]")?,
            }
        }
        let whole = if self.steps.is_empty() { "the message" } else { "" };
        write!(f, "{whole}: {}", self.why)
    }
}

impl<'de> Reader<'de> {
    /// Takes a value without parts.
    #[inline]
    fn take<T: Deserialize<'de>>(&mut self) -> Result<T, Mistake> {
        let (value, rest) = postcard::take_from_bytes(self.bytes).map_err(Mistake::custom)?;
        self.bytes = rest;
        Ok(value)
    }

    /// Takes the number of a list's items. Items without bytes would cost time without limit.
    fn take_count(&mut self) -> Result<usize, Mistake> {
        let count = self.take()?;
        match count <= self.bytes.len() {
            true => Ok(count),
            false => Err(Mistake::custom("a list has more items than bytes follow")),
        }
    }

    /// Reads the parts of a value.
    fn within<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        if self.depth == DEPTH_MAX {
            return Err(Mistake::custom("values are nested too deeply"));
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn sequence<V: Visitor<'de>>(
        &mut self,
        (left, names): (usize, &'static [&'static str]),
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.within(|reader| visitor.visit_seq(Parts { reader, left, index: 0, names }))
    }
}

macro_rules! leaves {
    ($($ask:ident $visit:ident $type:ty;)*) => {
        $(#[inline]
        fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
            visitor.$visit(self.take::<$type>()?)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Mistake;

    leaves! {
        deserialize_bool visit_bool bool;
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_i128 visit_i128 i128;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
        deserialize_f32 visit_f32 f32;
        deserialize_f64 visit_f64 f64;
        deserialize_char visit_char char;
        deserialize_str visit_borrowed_str &'de str;
        deserialize_string visit_borrowed_str &'de str;
        deserialize_bytes visit_borrowed_bytes &'de [u8];
        deserialize_byte_buf visit_borrowed_bytes &'de [u8];
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Mistake> {
        Err(Mistake::custom("a type that postcard cannot read"))
    }

    serde::forward_to_deserialize_any! { identifier ignored_any }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.take::<u8>()? {
            0 => visitor.visit_none(),
            1 => self.within(|reader| visitor.visit_some(reader)),
            _ => Err(Mistake::custom("an optional value begins with 0 or 1")),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.within(|reader| visitor.visit_newtype_struct(reader))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let count = self.take_count()?;
        self.sequence((count, &[]), visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.sequence((count, &[]), visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.sequence((count, &[]), visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let left = self.take_count()?;
        self.within(|reader| visitor.visit_map(Parts { reader, left, index: 0, names: &[] }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.sequence((names.len(), names), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.within(|reader| visitor.visit_enum(reader))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The items, fields or entries that are left of a value.
struct Parts<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
    index: usize,
    names: &'static [&'static str],
}

impl<'de> Parts<'_, 'de> {
    /// Reads a part at the present place.
    #[inline]
    fn read<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mistake> {
        seed.deserialize(&mut *self.reader).map_err(|mut mistake| {
            let field = self.names.get(self.index).map(|name| Step::Field(name));
            mistake.0.steps.push(field.unwrap_or(Step::Item(self.index)));
            mistake
        })
    }
}

impl<'de> SeqAccess<'de> for Parts<'_, 'de> {
    type Error = Mistake;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Mistake> {
        if self.left == 0 {
            return Ok(None);
        }
        let part = self.read(seed)?;
        (self.left, self.index) = (self.left - 1, self.index + 1);
        Ok(Some(part))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Parts<'_, 'de> {
    type Error = Mistake;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Mistake> {
        match self.left {
            0 => Ok(None),
            _ => self.read(seed).map(Some),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mistake> {
        let value = self.read(seed)?;
        (self.left, self.index) = (self.left - 1, self.index + 1);
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Mistake;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Mistake> {
        let variant: U32Deserializer<Mistake> = self.take::<u32>()?.into_deserializer();
        Ok((seed.deserialize(variant)?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Mistake;

    fn unit_variant(self) -> Result<(), Mistake> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Mistake> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Mistake> {
        self.sequence((count, &[]), visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.sequence((names.len(), names), visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Line {
        count: u16,
        note: Option<String>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Plain,
        Around(Box<Order>),
        Pair(i8, f32),
        Named { letter: char, wide: i128 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        item: String,
        lines: Vec<Line>,
        kinds: Vec<Kind>,
        map: BTreeMap<u64, (bool, [i32; 2], ())>,
    }

    fn order(kinds: Vec<Kind>) -> Order {
        let line = |count| Line { count, note: (count > 200).then(|| "many".to_owned()) };
        let map = [(7, (true, [-1, 1 << 20], ())), (u64::MAX, (false, [0, i32::MIN], ()))].into();
        Order { item: "tern".to_owned(), lines: vec![line(3), line(900)], kinds, map }
    }

    fn bytes() -> (Order, Vec<u8>) {
        let kinds =
            vec![Kind::Plain, Kind::Pair(-3, 0.5), Kind::Named { letter: 'ß', wide: -1 << 90 }];
        let order = order(vec![Kind::Around(Box::new(order(kinds))), Kind::Plain]);
        let bytes = postcard::to_stdvec(&order).unwrap();
        (order, bytes)
    }

    #[test]
    fn read__as_postcard_does() {
        let (order, bytes) = bytes();
        assert_eq!(read::<Order>(&bytes).unwrap(), order);
        for at in 0..bytes.len() {
            assert!(read::<Order>(&bytes[..at]).is_err(), "{at} bytes");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let theirs = postcard::take_from_bytes::<Order>(&changed).ok();
                let theirs = theirs.filter(|(_, rest)| rest.is_empty()).map(|(order, _)| order);
                // Values that are not a number differ from themselves.
                let (own, theirs) = (read::<Order>(&changed).ok(), theirs);
                assert_eq!(format!("{own:?}"), format!("{theirs:?}"), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn read__names_the_field_that_does_not_decode() {
        let why = |bytes: &[u8]| read::<Order>(bytes).unwrap_err().to_string();
        assert!(why(&[1, 0xff]).starts_with("item: "));
        assert!(why(&[0, 2, 1, 0, 1, 7]).starts_with("lines[1].note: "));
        assert!(why(&[0, 1]).starts_with("lines: a list has more items"));
        assert!(why(&[0, 0, 1, 1, 1, 0xff]).starts_with("kinds[0].item: "));
        assert!(read::<u16>(&[]).unwrap_err().to_string().starts_with("the message: "));
        assert_eq!(read::<u8>(&[1, 2]).unwrap_err().to_string(), "bytes follow the last field");
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Nested(Option<Box<Nested>>);

    /// A stranger's message must not use up the stack, nor the time.
    #[test]
    fn read__refuses_depth_and_items_without_bytes() {
        let nested = |depth: usize| read::<Nested>(&[&vec![1; depth][..], &[0]].concat());
        assert!(nested(40).is_ok());
        let why = nested(1 << 20).unwrap_err().to_string();
        assert!(why.ends_with("values are nested too deeply"), "{why}");
        let many = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(read::<Vec<()>>(&many).is_err());
        assert!(read::<BTreeMap<(), ()>>(&many).is_err());
    }
}
