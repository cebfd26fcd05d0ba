# Writes the code block of PAGE whose first line is "// NAME" to OUTPUT.
#   cmake -D PAGE=… -D NAME=… -D OUTPUT=… -P held_file.cmake
file(READ ${PAGE} text)
string(FIND "${text}" "```cpp\n// ${NAME}\n" begin)
if(begin EQUAL -1)
  message(FATAL_ERROR "${PAGE}: no code block whose first line is // ${NAME}")
endif()
string(SUBSTRING "${text}" ${begin} -1 text)
string(REGEX REPLACE "^```cpp\n" "" text "${text}")
string(FIND "${text}" "\n```\n" end)
string(SUBSTRING "${text}" 0 ${end} text)
file(WRITE ${OUTPUT} "${text}\n")
