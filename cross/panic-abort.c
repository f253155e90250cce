/* libunwind for a program that aborts on panic, so that nothing ever unwinds. std still asks for a backtrace and for a few
 * names; this says that the stack ends here. Weak: a target whose libgcc brings the real thing keeps it. */
typedef void *pointer;

/* 5 is _URC_END_OF_STACK */
__attribute__((weak)) int _Unwind_Backtrace(pointer callback, pointer argument) { (void)callback; (void)argument; return 5; }
__attribute__((weak)) unsigned long _Unwind_GetIP(pointer context) { (void)context; return 0; }
__attribute__((weak)) unsigned long _Unwind_GetIPInfo(pointer context, int *before) { (void)context; *before = 0; return 0; }

#ifdef __arm__
/* 1 is _UVRSR_NOT_IMPLEMENTED; the personality routines stand in libgcc's own exception tables and are never called */
__attribute__((weak)) int _Unwind_VRS_Get(pointer context, int class, unsigned number, int representation, pointer value) {
    (void)context; (void)class; (void)number; (void)representation; (void)value;
    return 1;
}
__attribute__((weak)) void __aeabi_unwind_cpp_pr0(void) {}
__attribute__((weak)) void __aeabi_unwind_cpp_pr1(void) {}
#endif
