//! The definition of a service: a trait, checked.

use std::ops::Range;

use proc_macro2::{Ident, Span};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, GenericArgument, ItemTrait, Lit, LitInt, LitStr, Pat,
    PathArguments, ReceiverKind, Result, ReturnType, Token, TraitItem, TraitItemFn, Type,
    Visibility, parse_quote,
};

/// The arguments of the attribute.
pub(crate) struct Options {
    pub(crate) codec: Type,
    name: Option<LitStr>,
    version: Option<LitStr>,
    descriptors: Expr,
}

/// The names that a client has already.
const TAKEN: [&str; 6] = ["new", "connect", "connect_wait", "client", "table", "with"];

/// Numbers from here on belong to the library.
const RESERVED: u16 = 65_000;

/// Numbers of methods without an id: an endpoint chooses them, and may have given an id's number away.
const HASHED: Range<u16> = 4_096..20_480;

/// The attributes of methods.
const OWN: [&str; 5] = ["dispatch", "worker", "idempotent", "id", "name"];

/// Attributes that would change a method, but not its client, server and table.
const REFUSED: [&str; 2] = ["cfg", "cfg_attr"];

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self {
            codec: parse_quote!(::petrel::service::Postcard),
            name: None,
            version: None,
            descriptors: parse_quote!(&[]),
        };
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            match &*name.to_string() {
                "codec" => options.codec = input.parse()?,
                "name" => options.name = Some(text(input)?),
                "version" => options.version = Some(text(input)?),
                "descriptors" => options.descriptors = input.parse()?,
                _ => {
                    let message = "`codec`, `name`, `version` or `descriptors` expected";
                    return Err(Error::new(name.span(), message));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// Parses a text that fits into a table.
fn text(input: ParseStream<'_>) -> Result<LitStr> {
    let text: LitStr = input.parse()?;
    let value = text.value();
    check_text(&value, text.span())?;
    Ok(text)
}

fn check_text(text: &str, at: Span) -> Result<()> {
    match (1..=255).contains(&text.len()) && !text.contains(char::is_control) {
        true => Ok(()),
        false => Err(Error::new(at, "a text has 1 to 255 bytes, and no control characters")),
    }
}

/// A service.
pub(crate) struct Definition {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) name: Ident,
    pub(crate) codec: Type,
    pub(crate) full_name: String,
    pub(crate) version: Option<LitStr>,
    pub(crate) descriptors: Expr,
    pub(crate) methods: Vec<Method>,
}

/// A method of a service.
pub(crate) struct Method {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) name: Ident,
    /// The name in the table: `SayHello` for `say_hello`, unless the attribute `name` sets another.
    pub(crate) full_name: String,
    pub(crate) place: Place,
    pub(crate) id: Option<u16>,
    pub(crate) is_idempotent: bool,
    pub(crate) cx: (Box<Pat>, Type),
    /// Absent only in a method with streams.
    pub(crate) request: Option<(Box<Pat>, Type)>,
    pub(crate) streams: Streams,
    pub(crate) output: Type,
    pub(crate) reply: Type,
}

/// The arguments of a method that are streams, and the types of their messages.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) input: Option<(Argument, Type)>,
    pub(crate) output: Option<(Argument, Type)>,
}

impl Streams {
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_none() && self.output.is_none()
    }
}

/// Where a handler runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Task,
    Dispatch,
    Worker,
}

impl Definition {
    pub(crate) fn of(options: Options, item: ItemTrait) -> Result<Self> {
        let has_bounds = !item.supertraits.is_empty() || item.generics.where_clause.is_some();
        if !item.generics.params.is_empty() || has_bounds || item.unsafety.is_some() {
            let message =
                "a service has no generic parameters and no supertraits, and is not unsafe";
            return Err(Error::new(item.ident.span(), message));
        }
        let methods = item.items.into_iter().map(Method::of).collect::<Result<Vec<_>>>()?;
        if methods.is_empty() {
            return Err(Error::new(item.ident.span(), "a service has a method at least"));
        }
        check_distinct(&methods)?;
        let full_name = options.name.map_or(item.ident.to_string(), |name| name.value());
        let Options { codec, version, descriptors, .. } = options;
        let (attributes, visibility, name) = (item.attrs, item.vis, item.ident);
        Ok(Self { attributes, visibility, name, codec, full_name, version, descriptors, methods })
    }

    pub(crate) fn has_workers(&self) -> bool {
        self.methods.iter().any(|method| method.place == Place::Worker)
    }
}

/// Refuses ids and names that two methods have.
fn check_distinct(methods: &[Method]) -> Result<()> {
    for (index, method) in methods.iter().enumerate() {
        let is_same = |other: &&Method| other.full_name == method.full_name;
        if let Some(other) = methods[..index].iter().find(is_same) {
            let message = format!("`{}` has the name {} already", other.name, other.full_name);
            return Err(Error::new(method.name.span(), message));
        }
        let same = methods[..index].iter().find(|other| other.id == method.id);
        if let (Some(id), Some(other)) = (method.id, same) {
            let message = format!("`{}` has the id {id} already", other.name);
            return Err(Error::new(method.name.span(), message));
        }
    }
    Ok(())
}

impl Method {
    fn of(item: TraitItem) -> Result<Self> {
        let TraitItem::Fn(item) = item else {
            return Err(Error::new(item.span(), "a service has methods alone"));
        };
        let TraitItemFn { mut attrs, sig, default, .. } = item;
        let name = sig.ident.clone();
        if let Some(body) = default {
            return Err(Error::new(body.span(), "a method of a service has no body"));
        }
        if !sig.generics.params.is_empty() || sig.generics.where_clause.is_some() {
            return Err(Error::new(name.span(), "a method of a service has no generic parameters"));
        }
        if !matches!(sig.safety, syn::Safety::Default)
            || sig.abi.is_some()
            || sig.constness.is_some()
        {
            return Err(Error::new(name.span(), "a method of a service is safe, and not const"));
        }
        let refused = |one: &&Attribute| REFUSED.iter().any(|name| one.path().is_ident(name));
        if let Some(attribute) = attrs.iter().find(refused) {
            return Err(Error::new(attribute.span(), "a method of a service has no condition"));
        }
        if TAKEN.iter().any(|taken| name == taken) {
            let message = format!("the client has a function `{name}` already");
            return Err(Error::new(name.span(), message));
        }
        let id = take_id(&mut attrs)?;
        let full_name = take_name(&mut attrs)?.unwrap_or_else(|| table_name(&name));
        check_text(&full_name, name.span())?;
        let is_idempotent = take(&mut attrs, "idempotent")?;
        let (cx, request, streams) = arguments(&sig.inputs, name.span())?;
        let (is_dispatched, is_worker) =
            (take(&mut attrs, "dispatch")?, take(&mut attrs, "worker")?);
        let place = match (sig.asyncness.is_some(), is_dispatched, is_worker) {
            (true, false, false) => Place::Task,
            (false, true, false) => Place::Dispatch,
            (false, false, true) => Place::Worker,
            _ if !streams.is_empty() => return Err(Error::new(name.span(), STREAMS_WAIT)),
            _ => {
                let message = "a method is `async`, or has `#[dispatch]` or `#[worker]`: its handler \
                               runs as a task, in the event loop, or on a worker";
                return Err(Error::new(name.span(), message));
            }
        };
        let (output, reply) = output(&sig.output, name.span())?;
        if !streams.is_empty() {
            check_streams(place, is_idempotent, request.as_ref(), name.span())?;
        }
        let is_unit = matches!(&reply, Type::Tuple(tuple) if tuple.elems.is_empty());
        if streams.output.is_some() && !is_unit {
            let message = "a method with a `Sender` returns `Result<(), petrel::Error>`: its \
                           messages are the answer";
            return Err(Error::new(name.span(), message));
        }
        let attributes = attrs;
        Ok(Self {
            attributes,
            name,
            full_name,
            place,
            id,
            is_idempotent,
            cx,
            request,
            streams,
            output,
            reply,
        })
    }

    /// Returns the type of messages, and whether the handler reads them in place.
    pub(crate) fn request_type(&self) -> (&Type, bool) {
        let (_, request) = self.request.as_ref().expect("a method without streams has a request");
        match request {
            Type::Reference(reference) => (&reference.elem, true),
            owned => (owned, false),
        }
    }
}

/// The refusal of a handler that could not wait for messages.
const STREAMS_WAIT: &str = "a method with streams is an `async fn` without `#[dispatch]` and `#[worker]`: its handler waits for messages";

/// Checks the rules of methods with streams.
fn check_streams(
    place: Place,
    is_idempotent: bool,
    request: Option<&Argument>,
    at: Span,
) -> Result<()> {
    if place != Place::Task {
        return Err(Error::new(at, STREAMS_WAIT));
    }
    if is_idempotent {
        let message = "a method with streams is never begun twice: remove `#[idempotent]`";
        return Err(Error::new(at, message));
    }
    match request {
        Some((_, Type::Reference(reference))) => {
            let message = "a method with streams takes its request by value: the memory of the request is gone while it runs";
            Err(Error::new(reference.span(), message))
        }
        _ => Ok(()),
    }
}

/// Returns a trait without the attributes that only [`Definition`] understands.
pub(crate) fn plain(mut item: ItemTrait) -> ItemTrait {
    for item in &mut item.items {
        if let TraitItem::Fn(method) = item {
            let is_own =
                |attribute: &Attribute| OWN.iter().any(|own| attribute.path().is_ident(own));
            method.attrs.retain(|attribute| !is_own(attribute));
        }
    }
    item.attrs.push(parse_quote!(#[allow(async_fn_in_trait, dead_code)]));
    item
}

/// Returns the name in the table: `SayHello` for `say_hello`.
fn table_name(method: &Ident) -> String {
    let name = method.to_string();
    let words = name.trim_start_matches("r#").split('_').flat_map(|word| {
        let mut letters = word.chars();
        let first = letters.next();
        first.into_iter().flat_map(char::to_uppercase).chain(letters)
    });
    words.collect()
}

/// Takes the attribute `#[name = "SayHello"]`.
fn take_name(attributes: &mut Vec<Attribute>) -> Result<Option<String>> {
    let Some(place) = attributes.iter().position(|one| one.path().is_ident("name")) else {
        return Ok(None);
    };
    let meta = attributes.remove(place).meta;
    match &meta.require_name_value()?.value {
        Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => Ok(Some(name.value())),
        other => Err(Error::new(other.span(), "a name is a text")),
    }
}

/// Takes an attribute without arguments.
fn take(attributes: &mut Vec<Attribute>, name: &str) -> Result<bool> {
    let Some(place) = attributes.iter().position(|one| one.path().is_ident(name)) else {
        return Ok(false);
    };
    attributes.remove(place).meta.require_path_only()?;
    Ok(true)
}

/// Takes the attribute `#[id(7)]`.
fn take_id(attributes: &mut Vec<Attribute>) -> Result<Option<u16>> {
    let Some(place) = attributes.iter().position(|one| one.path().is_ident("id")) else {
        return Ok(None);
    };
    let id: LitInt = attributes.remove(place).parse_args()?;
    match id.base10_parse::<u16>() {
        Ok(number) if number < RESERVED && !HASHED.contains(&number) => Ok(Some(number)),
        _ => {
            let Range { start, end } = HASHED;
            let message = format!("an id is below {start}, or from {end} to {}", RESERVED - 1);
            Err(Error::new(id.span(), message))
        }
    }
}

type Argument = (Box<Pat>, Type);

/// Returns the context, the request and the streams.
fn arguments(
    inputs: &Punctuated<FnArg, Token![,]>,
    at: Span,
) -> Result<(Argument, Option<Argument>, Streams)> {
    let message = "a method of a service has three arguments: `&self`, the context, and the request; or \
                   `&self`, the context, a request or none, and a `Receiver`, a `Sender` or both in this order";
    let wrong = || Error::new(at, message);
    let mut arguments = inputs.iter();
    let is_shared = |receiver: &syn::Receiver| {
        matches!(receiver.kind, ReceiverKind::Reference(..)) && receiver.mutability.is_none()
    };
    if !matches!(arguments.next(), Some(FnArg::Receiver(receiver)) if is_shared(receiver)) {
        return Err(wrong());
    }
    let typed = arguments.map(|argument| match argument {
        FnArg::Typed(typed) => Ok((typed.pat.clone(), (*typed.ty).clone())),
        FnArg::Receiver(_) => Err(wrong()),
    });
    let mut typed = typed.collect::<Result<Vec<_>>>()?.into_iter().peekable();
    let cx = typed.next_if(|one| !is_stream(&one.1)).ok_or_else(wrong)?;
    let request = typed.next_if(|one| !is_stream(&one.1));
    let mut stream = |name| {
        let argument = typed.next_if(|one| messages(&one.1, name).is_some())?;
        let messages = messages(&argument.1, name)?;
        Some((argument, messages))
    };
    let streams = Streams { input: stream("Receiver"), output: stream("Sender") };
    match typed.next() {
        Some((_, of)) => Err(misplaced(&of, &streams)),
        None if request.is_none() && streams.is_empty() => Err(wrong()),
        None => Ok((cx, request, streams)),
    }
}

/// Returns the mistake of an argument behind those that a method has.
fn misplaced(of: &Type, streams: &Streams) -> Error {
    let by_value = match of {
        Type::Reference(reference) => &reference.elem,
        owned => owned,
    };
    let is = |name| messages(by_value, name).is_some();
    let message = match streams {
        _ if is_stream(of) && !is("Receiver") && !is("Sender") => {
            "a stream names the type of its messages: `Receiver<Message>`, `Sender<Message>`"
        }
        _ if is_stream(by_value) && matches!(of, Type::Reference(_)) => {
            "a handler owns its streams: take the `Receiver` or `Sender` by value"
        }
        Streams { input: Some(_), .. } if is("Receiver") => {
            "a method has one `Receiver`: put the kinds of messages into an enum"
        }
        Streams { output: Some(_), .. } if is("Sender") => {
            "a method has one `Sender`: put the kinds of messages into an enum"
        }
        _ if is("Receiver") => "the `Receiver` stands before the `Sender`",
        streams if !streams.is_empty() => "the request stands before the streams",
        _ => "a method has one request: put several values into a struct or a tuple",
    };
    Error::new(of.span(), message)
}

/// Returns true for a `Receiver` or `Sender`, also by reference or without the type of its messages.
fn is_stream(of: &Type) -> bool {
    match of {
        Type::Reference(reference) => is_stream(&reference.elem),
        Type::Path(path) => {
            let last = path.path.segments.last();
            last.is_some_and(|last| last.ident == "Receiver" || last.ident == "Sender")
        }
        _ => false,
    }
}

/// Returns the type of the messages of a `Receiver` or `Sender`.
fn messages(of: &Type, name: &str) -> Option<Type> {
    if let Type::Path(path) = of
        && let Some(last) = path.path.segments.last()
        && last.ident == name
        && let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(message)) = arguments.args.first()
    {
        return Some(message.clone());
    }
    None
}

/// Returns the type of the output, and that of the reply in it.
fn output(output: &ReturnType, at: Span) -> Result<(Type, Type)> {
    if let ReturnType::Type(_, output) = output
        && let Type::Path(path) = &**output
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(GenericArgument::Type(reply)) = arguments.args.first()
    {
        return Ok(((**output).clone(), reply.clone()));
    }
    let message = "a method of a service returns `Result<Reply, petrel::Error>`";
    Err(Error::new(at, message))
}
