//! The arguments of a batched function: shared by all lanes, or a lane's own.

use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, Lifetime, Pat, PatType, ReceiverKind, Result,
    ReturnType, Safety, Signature, Type, parse_quote,
};

use crate::marks::note;

/// A lane's argument.
pub(crate) struct Input {
    pub(crate) pattern: Pat,
    pub(crate) ty: Type,
}

/// The arguments and the result of a batch.
pub(crate) struct Arguments {
    /// As in the plain function, without the attribute.
    pub(crate) shared: Vec<FnArg>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) result: Type,
    /// Lifetimes that the plain function leaves out. The batch needs their names, since its result is a closure's argument.
    pub(crate) lifetimes: Vec<Lifetime>,
    pub(crate) is_method: bool,
}

fn is_shared(attribute: &Attribute) -> bool {
    attribute.path().is_ident("shared")
}

/// Takes the attributes of this macro from a signature.
pub(crate) fn strip(signature: &mut Signature) {
    for argument in &mut signature.inputs {
        match argument {
            FnArg::Receiver(receiver) => receiver.attrs.retain(|attribute| !is_shared(attribute)),
            FnArg::Typed(argument) => argument.attrs.retain(|attribute| !is_shared(attribute)),
        }
    }
}

/// Reads the signature of a batched function.
///
/// # Errors
/// All parts of the signature that a batch cannot have.
pub(crate) fn read(signature: &Signature) -> Result<Arguments> {
    let mut error = None;
    check_function(signature, &mut error);
    let mut naming = Naming::default();
    let mut arguments = Arguments {
        shared: Vec::new(),
        inputs: Vec::new(),
        result: parse_quote!(()),
        lifetimes: Vec::new(),
        is_method: false,
    };
    for argument in &signature.inputs {
        if let Err(refusal) = read_argument(argument, &mut naming, &mut arguments) {
            note(&mut error, refusal);
        }
    }
    if arguments.inputs.is_empty() && error.is_none() {
        let message = "a batched function needs an argument that is not `#[shared]`: each input of the batch is its value";
        note(&mut error, Error::new(signature.ident.span(), message));
    }
    if let ReturnType::Type(_, result) = &signature.output {
        let mut result = Type::clone(result);
        if let Err(refusal) = check_result(&result) {
            note(&mut error, refusal);
        }
        Resolve(naming.of_result()).visit_type_mut(&mut result);
        arguments.result = result;
    }
    arguments.lifetimes = naming.made;
    error.map_or(Ok(arguments), Err)
}

fn check_function(signature: &Signature, error: &mut Option<Error>) {
    let mut refuse = |place: &dyn quote::ToTokens, message: &str| {
        note(error, Error::new_spanned(place.to_token_stream(), message));
    };
    if let Some(keyword) = &signature.asyncness {
        refuse(
            keyword,
            "an async function cannot be batched: remove `async`; marks already let other inputs run",
        );
    }
    if let Some(keyword) = &signature.constness {
        refuse(
            keyword,
            "a const function cannot be batched: remove `const`; a prefetch happens at run time",
        );
    }
    if let Some(abi) = &signature.abi {
        refuse(
            abi,
            "a batched function has Rust's own calling convention: remove `extern`, and call it from an extern function",
        );
    }
    if let Safety::Safe(keyword) = &signature.safety {
        refuse(keyword, "`safe` has no meaning here: remove it");
    }
}

fn check_result(result: &Type) -> Result<()> {
    struct Impl(Option<Error>);
    impl VisitMut for Impl {
        fn visit_type_impl_trait_mut(&mut self, result: &mut syn::TypeImplTrait) {
            let message = "the result of a batched function needs a name: replace `impl Trait` by the type, or by `Box<dyn Trait>`";
            note(&mut self.0, Error::new_spanned(result, message));
        }
    }
    let mut search = Impl(None);
    search.visit_type_mut(&mut result.clone());
    search.0.map_or(Ok(()), Err)
}

fn read_argument(argument: &FnArg, naming: &mut Naming, arguments: &mut Arguments) -> Result<()> {
    let refuse = |place: &dyn quote::ToTokens, message: &str| {
        Err(Error::new_spanned(place.to_token_stream(), message))
    };
    match argument {
        FnArg::Receiver(receiver) => {
            arguments.is_method = true;
            if let Some(attribute) = receiver.attrs.iter().find(|attribute| is_shared(attribute)) {
                return refuse(attribute, "all lanes share `self` anyway: remove `#[shared]`");
            }
            let mut receiver = receiver.clone();
            match &mut receiver.kind {
                ReceiverKind::Reference(_, _, Some(_)) => {
                    return refuse(
                        &receiver,
                        "`&mut self` cannot be shared by the lanes of a batch: take `&self`, and write in the closure that gets the results",
                    );
                }
                ReceiverKind::Reference(_, lifetime, None) => {
                    let name = naming.name(lifetime.take());
                    naming.receiver = Some(name.clone());
                    *lifetime = Some(name);
                }
                ReceiverKind::Typed(_, ty) if is_unique(ty) => {
                    return refuse(
                        &ty.clone(),
                        "`&mut self` cannot be shared by the lanes of a batch: take `&self`, and write in the closure that gets the results",
                    );
                }
                _ => {}
            }
            arguments.shared.push(FnArg::Receiver(receiver));
        }
        FnArg::Typed(argument) if argument.attrs.iter().any(is_shared) => {
            let mut argument = argument.clone();
            argument.attrs.retain(|attribute| !is_shared(attribute));
            check_shared(&argument)?;
            naming.visit_type_mut(&mut argument.ty);
            arguments.shared.push(FnArg::Typed(argument));
        }
        FnArg::Typed(argument) => {
            let mut ty = (*argument.ty).clone();
            naming.visit_type_mut(&mut ty);
            arguments.inputs.push(Input { pattern: (*argument.pat).clone(), ty });
        }
    }
    Ok(())
}

fn is_unique(ty: &Type) -> bool {
    matches!(ty, Type::Reference(reference) if reference.mutability.is_some())
}

fn check_shared(argument: &PatType) -> Result<()> {
    if is_unique(&argument.ty) {
        let message = "lanes cannot share a `&mut`, since their order is not the inputs' order: take a `&Cell`, or write in the closure that gets the results";
        return Err(Error::new_spanned(&argument.ty, message));
    }
    if let Pat::Ident(pattern) = &*argument.pat
        && let Some(keyword) = &pattern.mutability
    {
        let message = "a shared argument cannot be `mut`, since all lanes would change it: bind a local of the lane by `let mut`";
        return Err(Error::new_spanned(keyword, message));
    }
    Ok(())
}

/// Names the lifetimes that the arguments leave out.
#[derive(Default)]
struct Naming {
    made: Vec<Lifetime>,
    all: Vec<Lifetime>,
    receiver: Option<Lifetime>,
}

impl Naming {
    fn name(&mut self, lifetime: Option<Lifetime>) -> Lifetime {
        let lifetime = lifetime.filter(|lifetime| lifetime.ident != "_").unwrap_or_else(|| {
            let name = format!("'petrel_{}", self.made.len());
            let lifetime = Lifetime::new(&name, proc_macro2::Span::call_site());
            self.made.push(lifetime.clone());
            lifetime
        });
        self.all.push(lifetime.clone());
        lifetime
    }

    /// The lifetime of a result that names no lifetime, by Rust's rules.
    fn of_result(&self) -> Option<Lifetime> {
        let only = match &*self.all {
            [only] => Some(only.clone()),
            _ => None,
        };
        self.receiver.clone().or(only)
    }
}

impl VisitMut for Naming {
    fn visit_type_reference_mut(&mut self, reference: &mut syn::TypeReference) {
        let lifetime = reference.lifetime.take();
        reference.lifetime = Some(self.name(lifetime));
        visit_mut::visit_type_reference_mut(self, reference);
    }
    fn visit_generic_argument_mut(&mut self, argument: &mut GenericArgument) {
        match argument {
            GenericArgument::Lifetime(lifetime) => *lifetime = self.name(Some(lifetime.clone())),
            argument => visit_mut::visit_generic_argument_mut(self, argument),
        }
    }
    // Lifetimes of these are bound there.
    fn visit_type_fn_ptr_mut(&mut self, _: &mut syn::TypeFnPtr) {}
    fn visit_parenthesized_generic_arguments_mut(
        &mut self,
        _: &mut syn::ParenthesizedGenericArguments,
    ) {
    }
}

/// Writes the lifetime that a result leaves out.
struct Resolve(Option<Lifetime>);

impl VisitMut for Resolve {
    fn visit_type_reference_mut(&mut self, reference: &mut syn::TypeReference) {
        if reference.lifetime.as_ref().is_none_or(|lifetime| lifetime.ident == "_") {
            reference.lifetime = self.0.clone();
        }
        visit_mut::visit_type_reference_mut(self, reference);
    }
    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if lifetime.ident == "_"
            && let Some(name) = &self.0
        {
            *lifetime = name.clone();
        }
    }
    fn visit_type_fn_ptr_mut(&mut self, _: &mut syn::TypeFnPtr) {}
    fn visit_parenthesized_generic_arguments_mut(
        &mut self,
        _: &mut syn::ParenthesizedGenericArguments,
    ) {
    }
}

pub(crate) fn batch_name(function: &Ident) -> Ident {
    Ident::new(&format!("{}_batch", function.to_string().trim_start_matches("r#")), function.span())
}
