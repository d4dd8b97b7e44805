//! The shape of a type with serde's `Deserialize`: the names and types of its fields.
//!
//! A deserializer of its own asks the type, and answers with small values. The fields of an enumeration's first variant are known,
//! and the names of all. Two versions of a type have different fingerprints unless only fields of later variants differ, or types behind a type
//! that refuses its small value, such as a date written as text: the names of all fields are seen, the types of those behind are not.

use std::cell::Cell;

use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::values::method_table::hash;

/// Nodes of the largest shape, and their largest depth: types may contain themselves.
const NODES_MAX: u32 = 4_096;
const DEPTH_MAX: u32 = 32;

/// From this depth on, lists and optional fields are empty.
const DEPTH_FULL: u32 = 12;

/// The shape of a type.
#[derive(Debug, Default)]
pub(super) struct Shape {
    kind: Kind,
    /// The name of the type.
    name: &'static str,
    /// The names of fields, or of an enumeration's variants.
    names: &'static [&'static str],
    /// The parts that were asked for: those before one that refuses its small value.
    parts: Vec<Shape>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Leaf,
    /// A part has the value's own place: an optional value, or a type around another.
    Around,
    /// The part stands for all items.
    Items,
    /// Each part has a place.
    Fields,
    /// The part is the first variant's.
    Enumeration,
}

impl Shape {
    /// Returns the shape of a type. A type that refuses a small value has a shape up to there.
    pub(super) fn of<T: DeserializeOwned>() -> Self {
        let mut shape = Self::default();
        let left = Cell::new(NODES_MAX);
        // An error leaves what is known.
        let _ = T::deserialize(Asking { shape: &mut shape, depth: 0, left: &left });
        shape
    }

    /// Returns a hash of all names and types.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut text = String::new();
        self.write(&mut text);
        hash([&*text])
    }

    fn write(&self, out: &mut String) {
        let Self { kind, name, names, parts } = self;
        *out += &format!("{kind:?} {name} {names:?}(");
        parts.iter().for_each(|part| part.write(out));
        out.push(')');
    }
}

/// Asks a type for its shape.
struct Asking<'a> {
    shape: &'a mut Shape,
    depth: u32,
    left: &'a Cell<u32>,
}

impl<'a> Asking<'a> {
    /// Records the kind and name of the value that is asked for.
    fn note(self, kind: Kind, name: &'static str) -> Result<Parts<'a>, Error> {
        self.note_named(kind, name, &[])
    }

    /// Records the kind and name of the value that is asked for, and the names in it.
    fn note_named(
        self,
        kind: Kind,
        name: &'static str,
        names: &'static [&'static str],
    ) -> Result<Parts<'a>, Error> {
        let Self { shape, depth, left } = self;
        let is_bounded = left.get() > 0 && depth < DEPTH_MAX;
        if !is_bounded {
            return Err(Error::custom("a type that is too large"));
        }
        left.set(left.get() - 1);
        (shape.kind, shape.name, shape.names) = (kind, name, names);
        Ok(Parts { parts: &mut shape.parts, count: names.len(), depth: depth + 1, left })
    }

    fn is_deep(&self) -> bool {
        self.depth >= DEPTH_FULL
    }
}

/// The parts of a value that are still to be asked for.
struct Parts<'a> {
    parts: &'a mut Vec<Shape>,
    count: usize,
    depth: u32,
    left: &'a Cell<u32>,
}

impl Parts<'_> {
    fn up_to(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Returns the deserializer of the next part.
    fn next(&mut self) -> Asking<'_> {
        self.parts.push(Shape::default());
        let shape = self.parts.last_mut().expect("it was just pushed");
        Asking { shape, depth: self.depth, left: self.left }
    }
}

macro_rules! leaves {
    ($($ask:ident $visit:ident $name:literal $value:expr;)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note(Kind::Leaf, $name)?;
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Asking<'_> {
    type Error = Error;

    leaves! {
        deserialize_bool visit_bool "bool" false;
        deserialize_i8 visit_i8 "i8" 1;
        deserialize_i16 visit_i16 "i16" 1;
        deserialize_i32 visit_i32 "i32" 1;
        deserialize_i64 visit_i64 "i64" 1;
        deserialize_i128 visit_i128 "i128" 1;
        deserialize_u8 visit_u8 "u8" 1;
        deserialize_u16 visit_u16 "u16" 1;
        deserialize_u32 visit_u32 "u32" 1;
        deserialize_u64 visit_u64 "u64" 1;
        deserialize_u128 visit_u128 "u128" 1;
        deserialize_f32 visit_f32 "f32" 0.0;
        deserialize_f64 visit_f64 "f64" 0.0;
        deserialize_char visit_char "char" 'a';
        deserialize_str visit_str "text" "";
        deserialize_string visit_str "text" "";
        deserialize_bytes visit_bytes "bytes" &[];
        deserialize_byte_buf visit_bytes "bytes" &[];
        deserialize_identifier visit_u32 "u32" 0;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a type without a shape"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is_deep = self.is_deep();
        let mut parts = self.note(Kind::Around, "optional")?;
        if is_deep { visitor.visit_none() } else { visitor.visit_some(parts.next()) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit_struct("unit", visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note(Kind::Leaf, name)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self.note(Kind::Around, name)?.next())
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let count = usize::from(!self.is_deep());
        visitor.visit_seq(self.note(Kind::Items, "list")?.up_to(count))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple_struct("tuple", count, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.note(Kind::Fields, name)?.up_to(count))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let count = if self.is_deep() { 0 } else { 2 };
        visitor.visit_map(self.note(Kind::Items, "map")?.up_to(count))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.note_named(Kind::Fields, name, fields)?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self.note_named(Kind::Enumeration, name, variants)?)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        match self.parts.len() < self.count {
            true => seed.deserialize(self.next()).map(Some),
            false => Ok(None),
        }
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.next())
    }
}

impl<'de> EnumAccess<'de> for Parts<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let first: U32Deserializer<Error> = 0_u32.into_deserializer();
        Ok((seed.deserialize(first)?, self))
    }
}

impl<'de> VariantAccess<'de> for Parts<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.next())
    }

    fn tuple_variant<V: Visitor<'de>>(
        mut self,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.next().deserialize_tuple(count, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.next().deserialize_struct("variant", fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroU8;

    use serde::{Deserialize, Serialize};

    use super::*;

    mod first {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(super) struct Message {
            pub(super) name: String,
            pub(super) kind: Kind,
        }

        #[derive(Serialize, Deserialize)]
        pub(super) enum Kind {
            Nested(Box<Message>),
            Plain,
        }
    }

    /// Each differs from [`first`] in a single respect.
    macro_rules! other {
        ($module:ident: $($field:ident: $type:ty),*; $($variant:tt)*) => {
            mod $module {
                use super::*;

                #[derive(Serialize, Deserialize)]
                #[allow(dead_code, reason = "types of a shape alone")]
                pub(super) struct Message {
                    $($field: $type),*
                }

                #[derive(Serialize, Deserialize)]
                #[allow(dead_code, reason = "types of a shape alone")]
                pub(super) enum Kind { $($variant)* }
            }
        };
    }

    other!(same: name: String, kind: Kind; Nested(Box<Message>), Plain);
    other!(renamed: title: String, kind: Kind; Nested(Box<Message>), Plain);
    other!(added: name: String, kind: Kind, more: bool; Nested(Box<Message>), Plain);
    other!(typed: name: Option<String>, kind: Kind; Nested(Box<Message>), Plain);
    other!(varied: name: String, kind: Kind; Nested(Box<Message>), Simple);

    fn fingerprint<T: DeserializeOwned>() -> u64 {
        Shape::of::<T>().fingerprint()
    }

    #[test]
    fn fingerprint__of_types_that_differ_and_of_types_within_themselves() {
        let first = fingerprint::<first::Message>();
        assert_eq!(first, fingerprint::<same::Message>());
        let others = [
            fingerprint::<renamed::Message>(),
            fingerprint::<added::Message>(),
            fingerprint::<typed::Message>(),
            fingerprint::<varied::Message>(),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(*other != first && !others[..index].contains(other), "{index}");
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Wide {
        map: BTreeMap<u8, (u16, String)>,
        lists: Vec<Vec<Option<Wide>>>,
    }

    #[test]
    fn shape__of_lists_maps_and_numbers() {
        let wide = Shape::of::<Wide>();
        let ([map, lists], ["map", "lists"]) = (&wide.parts[..], wide.names) else {
            panic!("{wide:?}")
        };
        assert_eq!((map.kind, map.parts.len()), (Kind::Items, 2));
        assert_eq!(lists.parts[0].parts[0].name, "optional");
        assert!(fingerprint::<Wide>() != 0);
        assert!(fingerprint::<(NonZeroU8, u8)>() != fingerprint::<(NonZeroU8, u16)>());
    }
}
