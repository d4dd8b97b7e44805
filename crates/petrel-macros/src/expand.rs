//! The items made of a service.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::definition::{Definition, Method, Place};

/// Returns the trait, and the client and the server of the service.
pub(crate) fn expand(of: &Definition) -> TokenStream {
    let (item, client, server) = (item(of), client(of), server(of));
    let (markers, table) = (markers(of), table(of));
    let (client_name, server_name) = names(of);
    let (visibility, name) = (&of.visibility, &of.name);
    let client_doc = format!("The client of [`{name}`].");
    let server_doc =
        format!("A [`{name}`] with its handlers, for [`serve`](::petrel::Endpoint::serve).");
    quote! {
        #item

        #[doc = #client_doc]
        #[derive(Clone)]
        #visibility struct #client_name<I: ::petrel::service::ClientInterceptors = ()>(
            ::petrel::service::Stub<I>,
        );

        #[doc = #server_doc]
        #visibility struct #server_name<H, I = ()> {
            service: ::std::sync::Arc<H>,
            workers: ::core::option::Option<::petrel::workers::Workers>,
            interceptors: I,
        }

        // The types of the methods cannot collide with others here.
        const _: () = {
            #markers
            #table
            #client
            #server
        };
    }
}

fn names(of: &Definition) -> (syn::Ident, syn::Ident) {
    (format_ident!("{}Client", of.name), format_ident!("{}Server", of.name))
}

/// Returns the trait without the attributes of its methods. A future need not be `Send`: it stays on its endpoint's thread.
fn item(of: &Definition) -> TokenStream {
    let Definition { attributes, visibility, name, methods, .. } = of;
    let bounds = match of.has_workers() {
        true => quote!(::core::marker::Send + ::core::marker::Sync + 'static),
        false => quote!('static),
    };
    let methods = methods.iter().map(|method| {
        let Method { attributes, name, cx, request, streams, output, .. } = method;
        let output = match method.place {
            Place::Task => quote!(impl ::core::future::Future<Output = #output>),
            Place::Dispatch | Place::Worker => quote!(#output),
        };
        let input = streams.input.as_ref().map(|(argument, _)| argument);
        let sent = streams.output.as_ref().map(|(argument, _)| argument);
        let arguments = [Some(cx), request.as_ref(), input, sent].into_iter().flatten();
        let arguments = arguments.map(|(name, of)| quote!(#name: #of));
        quote!(#(#attributes)* fn #name(&self, #(#arguments),*) -> #output;)
    });
    quote!(#(#attributes)* #visibility trait #name: #bounds { #(#methods)* })
}

fn marker(index: usize) -> syn::Ident {
    format_ident!("__Method{index}")
}

/// Returns a type for each method.
fn markers(of: &Definition) -> TokenStream {
    let codec = &of.codec;
    let markers = of.methods.iter().enumerate().map(|(index, method)| {
        let (marker, reply) = (marker(index), &method.reply);
        let name = format!("{}/{}", of.full_name, method.full_name);
        if !method.streams.is_empty() {
            return stream_marker(of, method, &marker, &name);
        }
        let (request, _) = method.request_type();
        quote! {
            struct #marker;

            impl ::petrel::service::Method for #marker {
                type Codec = #codec;
                type Request = #request;
                type Reply = #reply;
                const NAME: &'static str = #name;
            }
        }
    });
    quote!(#(#markers)*)
}

/// Returns the type of a method with streams.
fn stream_marker(of: &Definition, method: &Method, marker: &syn::Ident, name: &str) -> TokenStream {
    let Method { request, streams, reply, .. } = method;
    let codec = &of.codec;
    let (has_request, sends, answers) =
        (request.is_some(), streams.input.is_some(), streams.output.is_some());
    let output = streams.output.as_ref().map_or(quote!(#reply), |(_, of)| quote!(#of));
    let input = streams.input.as_ref().map_or(output.clone(), |(_, of)| quote!(#of));
    let request = request.as_ref().map_or(output.clone(), |(_, of)| quote!(#of));
    quote! {
        struct #marker;

        impl ::petrel::service::StreamMethod for #marker {
            type Codec = #codec;
            type Request = #request;
            type Input = #input;
            type Output = #output;
            const NAME: &'static str = #name;
            const HAS_REQUEST: bool = #has_request;
            const STREAMS: (bool, bool) = (#sends, #answers);
        }
    }
}

fn table(of: &Definition) -> TokenStream {
    let entries = of.methods.iter().enumerate().map(|(index, method)| {
        let (marker, name, is_idempotent) =
            (marker(index), &method.full_name, method.is_idempotent);
        let id = match method.id {
            Some(id) => quote!(::core::option::Option::Some(#id)),
            None => quote!(::core::option::Option::None),
        };
        if !method.streams.is_empty() {
            return quote!(::petrel::service::MethodEntry::of_stream::<#marker>(#name, #id));
        }
        quote!(::petrel::service::MethodEntry::of::<#marker>(#name, #id, #is_idempotent))
    });
    let (name, descriptors) = (&of.full_name, &of.descriptors);
    let version = match &of.version {
        Some(version) => quote!(#version),
        None => quote!(::core::env!("CARGO_PKG_VERSION")),
    };
    quote! {
        static TABLE: ::petrel::service::ServiceTable =
            ::petrel::service::ServiceTable::new((#name, #version), &[#(#entries),*], #descriptors);
    }
}

fn client(of: &Definition) -> TokenStream {
    let (client, visibility) = (names(of).0, &of.visibility);
    let methods = of.methods.iter().enumerate().map(|(index, method)| {
        let (marker, name, reply) = (marker(index), &method.name, &method.reply);
        let documentation = method.attributes.iter().filter(|one| one.path().is_ident("doc"));
        if !method.streams.is_empty() {
            let function = stream_client(visibility, &marker, index, method);
            return quote!(#(#documentation)* #function);
        }
        let (request, _) = method.request_type();
        let is_idempotent = method.is_idempotent;
        quote! {
            #(#documentation)*
            #visibility fn #name(
                &self,
                request: impl ::core::borrow::Borrow<#request>,
            ) -> ::petrel::service::CallOf<#reply, __I> {
                let request = ::core::borrow::Borrow::borrow(&request);
                self.0.call::<#marker>(#index, request, #is_idempotent)
            }
        }
    });
    quote! {
        #[allow(dead_code)]
        impl #client {
            /// Returns a client of the service at the servers of another client.
            #visibility fn new(client: ::petrel::Client) -> Self {
                Self(::petrel::service::Stub::new(client, &TABLE))
            }

            /// Connects to the service on one or several servers.
            ///
            /// # Errors
            /// No server can be reached.
            #visibility async fn connect(
                targets: impl ::core::convert::Into<::petrel::client::Targets>,
            ) -> ::core::result::Result<Self, ::petrel::Error> {
                ::core::result::Result::Ok(Self(::petrel::service::Stub::connect(targets, &TABLE).await?))
            }

            /// Connects to the service, with the thread parked.
            ///
            /// # Errors
            /// No server can be reached.
            #visibility fn connect_wait(
                targets: impl ::core::convert::Into<::petrel::client::Targets>,
            ) -> ::core::result::Result<Self, ::petrel::Error> {
                ::core::result::Result::Ok(Self(::petrel::service::Stub::connect_wait(targets, &TABLE)?))
            }

            /// Returns the table of the methods.
            #visibility fn table() -> &'static ::petrel::service::ServiceTable {
                &TABLE
            }
        }

        impl<__I: ::petrel::service::ClientInterceptors> ::core::fmt::Debug for #client<__I> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Debug::fmt(&self.0, f)
            }
        }

        #[allow(dead_code)]
        impl<__I: ::petrel::service::ClientInterceptors> #client<__I> {
            /// Returns a client whose calls pass a further interceptor.
            #visibility fn with<F: ::petrel::service::ClientInterceptor>(
                self,
                interceptor: F,
            ) -> #client<(F, __I)> {
                #client(self.0.with(interceptor))
            }

            /// Returns the client of all services at the servers.
            #visibility fn client(&self) -> &::petrel::Client {
                self.0.client()
            }

            #(#methods)*
        }
    }
}

/// Returns the client's function of a method with streams.
fn stream_client(
    visibility: &syn::Visibility,
    marker: &syn::Ident,
    index: usize,
    method: &Method,
) -> TokenStream {
    let Method { name, request, streams, reply, .. } = method;
    let messages = |stream: &Option<(_, syn::Type)>| {
        stream.as_ref().map(|(_, messages): &((Box<syn::Pat>, syn::Type), _)| messages.clone())
    };
    let (call, output) = match (messages(&streams.input), messages(&streams.output)) {
        (None, Some(output)) => {
            (quote!(server_stream), quote!(::petrel::stream::Receiver<#output>))
        }
        (Some(input), None) => (
            quote!(client_stream),
            quote!((::petrel::stream::Sender<#input>, ::petrel::stream::Reply<#reply>)),
        ),
        (Some(input), Some(output)) => (
            quote!(both_streams),
            quote!((::petrel::stream::Sender<#input>, ::petrel::stream::Receiver<#output>)),
        ),
        (None, None) => unreachable!("the method has a stream"),
    };
    let (argument, request) = match request {
        Some((_, of)) => (
            quote!(, request: impl ::core::borrow::Borrow<#of>),
            quote!(::core::option::Option::Some(::core::borrow::Borrow::borrow(&request))),
        ),
        None => (quote!(), quote!(::core::option::Option::None)),
    };
    quote! {
        #visibility fn #name(&self #argument) -> ::petrel::stream::StreamCall<#output> {
            self.0.#call::<#marker>(#index, #request)
        }
    }
}

fn server(of: &Definition) -> TokenStream {
    let ((_, server), visibility, name) = (names(of), &of.visibility, &of.name);
    let (argument, workers) = match of.has_workers() {
        true => (
            quote!(, workers: &::petrel::workers::Workers),
            quote!(::core::option::Option::Some(::core::clone::Clone::clone(workers))),
        ),
        false => (quote!(), quote!(::core::option::Option::None)),
    };
    let pass = of.has_workers().then(|| quote!(, workers));
    let handlers = of.methods.iter().enumerate().map(|(index, method)| handler(of, index, method));
    quote! {
        #[allow(dead_code)]
        impl<H: #name> #server<H> {
            /// Returns a server of these handlers.
            #visibility fn new(service: H #argument) -> Self {
                Self::shared(::std::sync::Arc::new(service) #pass)
            }

            /// Returns a server of handlers that others have, too: of further threads, or of the application.
            #visibility fn shared(service: ::std::sync::Arc<H> #argument) -> Self {
                Self { service, workers: #workers, interceptors: () }
            }
        }

        #[allow(dead_code)]
        impl<H: #name, I: ::petrel::service::ServerInterceptors> #server<H, I> {
            /// Returns a server whose handlers run within a further interceptor.
            #visibility fn with<F: ::petrel::service::ServerInterceptor>(
                self,
                interceptor: F,
            ) -> #server<H, (F, I)> {
                let Self { service, workers, interceptors } = self;
                #server { service, workers, interceptors: (interceptor, interceptors) }
            }
        }

        impl<H: #name, I: ::petrel::service::ServerInterceptors> ::petrel::service::Service for #server<H, I> {
            fn table(&self) -> &'static ::petrel::service::ServiceTable {
                &TABLE
            }

            fn add_to(self, methods: &mut ::petrel::service::Methods) {
                let Self { service, workers, interceptors } = self;
                let _ = &workers;
                let mut methods = methods.between(interceptors);
                #(#handlers)*
            }
        }
    }
}

fn handler(of: &Definition, index: usize, method: &Method) -> TokenStream {
    let (service, name, marker) = (&of.name, &method.name, marker(index));
    let function = quote!(<H as #service>::#name);
    if !method.streams.is_empty() {
        return stream_handler(of, method, &marker);
    }
    let suffix = if method.request_type().1 { "_in_place" } else { "" };
    match method.place {
        Place::Task => {
            let add = format_ident!("task{suffix}");
            quote!(methods.#add::<#marker, H>(&service, #function);)
        }
        Place::Dispatch => {
            let add = format_ident!("dispatch{suffix}");
            quote! {
                let own = ::std::sync::Arc::clone(&service);
                methods.#add::<#marker>(move |cx, message| #function(&own, cx, message));
            }
        }
        Place::Worker => {
            let add = format_ident!("worker{suffix}");
            quote! {
                let pool = workers.as_ref().expect("a server with workers has a pool");
                methods.#add::<#marker, H>((&service, pool), #function);
            }
        }
    }
}

/// Adds the handler of a method with streams.
fn stream_handler(of: &Definition, method: &Method, marker: &syn::Ident) -> TokenStream {
    let (service, Method { name, request, streams, reply, .. }) = (&of.name, method);
    let request =
        request.as_ref().map(|_| quote!(request.expect("a method with a request gets it"),));
    let input = streams.input.as_ref().map(|_| quote!(input,));
    let output = streams.output.as_ref().map(|_| quote!(output,));
    let (outcome, to_reply) = match streams.output {
        Some(_) => (quote!(()), quote!(|()| ::core::option::Option::None)),
        None => (quote!(#reply), quote!(::core::option::Option::Some)),
    };
    // No closure that is a future: it would keep the arguments beside the handler's own.
    quote! {{
        fn begin<'a, 'b, __H: #service>(
            service: &'a __H,
            cx: &'b ::petrel::service::Ctx,
            request: ::core::option::Option<<#marker as ::petrel::service::StreamMethod>::Request>,
            input: ::petrel::stream::Receiver<<#marker as ::petrel::service::StreamMethod>::Input>,
            output: ::petrel::stream::Sender<<#marker as ::petrel::service::StreamMethod>::Output>,
        ) -> impl ::core::future::Future<Output = ::core::result::Result<#outcome, ::petrel::Error>>
        + use<'a, 'b, __H> {
            let _ = (&request, &input, &output);
            <__H as #service>::#name(service, cx, #request #input #output)
        }
        methods.stream::<#marker, H, #outcome>(&service, begin, #to_reply);
    }}
}
