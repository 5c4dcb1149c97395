// The processor's intrinsics. GCC's immintrin.h declares those of every processor, most of them AVX-512's; without
// AVX-512 they are left out, which takes a fifth off the time to read all headers of a section.
#pragma once
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__) && defined(__FMA__) && \
    defined(__F16C__) && !defined(__AVX512F__)
// Each of these refuses to be read but as a part of it.
#define _IMMINTRIN_H_INCLUDED
#if __has_include(<x86gprintrin.h>)
#include <x86gprintrin.h>
#endif
#include <mmintrin.h>
#include <xmmintrin.h>
#include <emmintrin.h>
#include <pmmintrin.h>
#include <tmmintrin.h>
#include <smmintrin.h>
#include <wmmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif
